// Runs a compiled model whose embeddings are Warprow's, without Python, and compares its predictions bit for bit with those that it was
// given: of the same model with torch's own embeddings.
//
//     serve OPERATORS MODEL BATCHES [FROM TO]
//
// OPERATORS is libwarprow_torch.so, as `python -m warprow.torch.native build` makes it, MODEL a package of AOTInductor's, BATCHES a list of
// lists of tensors that torch.save has written: the arguments of a call, and last what it has to give. A drive that the model calls FROM is
// opened at TO. docs/python.md has the rules.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "warprow_torch.h"

namespace {

// The functions of the library of operators, which this program loads by its name.
struct Operators {
    decltype(&warprow_torch_rename_drive) rename_drive;
    decltype(&warprow_torch_check) check;
    decltype(&warprow_torch_close) close;
    decltype(&warprow_torch_message) message;

    explicit Operators(const char *file) {
        void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
        if (!library) throw std::runtime_error(dlerror());
        auto find = [&](const char *name) {
            void *found = dlsym(library, name);
            if (!found) throw std::runtime_error(dlerror());
            return found;
        };
        rename_drive = reinterpret_cast<decltype(rename_drive)>(find("warprow_torch_rename_drive"));
        check = reinterpret_cast<decltype(check)>(find("warprow_torch_check"));
        close = reinterpret_cast<decltype(close)>(find("warprow_torch_close"));
        message = reinterpret_cast<decltype(message)>(find("warprow_torch_message"));
    }

    void must(int32_t code) const {
        if (code != 0) throw std::runtime_error(message());
    }
};

std::vector<char> bytes_of(const char *path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(std::string(path) + " cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

// A list of tensors, as Python has written it.
std::vector<at::Tensor> tensors_of(const c10::IValue &list) {
    std::vector<at::Tensor> found;
    for (const c10::IValue &it : list.toListRef()) found.push_back(it.toTensor());
    return found;
}

// Whether two tensors have the same bits.
bool same_bits(const at::Tensor &one, const at::Tensor &another) {
    const auto left = one.cpu().contiguous(), right = another.cpu().contiguous();
    return left.sizes() == right.sizes() && left.dtype() == right.dtype() &&
           std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

void serve(const Operators &operators, const char *package, const char *batches) {
    torch::inductor::AOTIModelPackageLoader model(package);
    int64_t predictions = 0;
    const c10::IValue read = torch::jit::pickle_load(bytes_of(batches));
    const auto all = read.toListRef();
    for (size_t at = 0; at < all.size(); at++) {
        const auto given = tensors_of(all[at]);
        const std::vector<at::Tensor> arguments(given.begin(), given.end() - 1);
        const auto found = model.run(arguments);
        // On a GPU a look-up tells here of rows that it could not read, and of ids that a table lacks.
        operators.must(operators.check(60'000));
        if (!same_bits(found.at(0), given.back())) throw std::runtime_error("predictions of batch " + std::to_string(at) + " differ");
        predictions += given.back().numel();
    }
    std::printf("%lld predictions, all equal bit for bit\n", static_cast<long long>(predictions));

    // An id that no table has. On the host the model's call fails; on a GPU the check behind it does.
    auto wrong = tensors_of(all[0]);
    wrong.pop_back();
    for (auto &argument : wrong) {
        if (argument.scalar_type() == at::kLong) argument = at::full_like(argument, int64_t{1} << 40);
    }
    try {
        model.run(wrong);
        operators.must(operators.check(60'000));
    } catch (const std::exception &) {
        std::printf("refused: %s\n", operators.message());
        return;
    }
    throw std::runtime_error("an id that no table has was looked up");
}

} // namespace

int main(int count, char **arguments) {
    if (count != 4 && count != 6) {
        std::fprintf(stderr, "usage: %s OPERATORS MODEL BATCHES [FROM TO]\n", arguments[0]);
        return 2;
    }
    try {
        const Operators operators(arguments[1]);
        if (count == 6) operators.must(operators.rename_drive(arguments[4], arguments[5]));
        serve(operators, arguments[2], arguments[3]);
        operators.must(operators.close());
        std::printf("all is closed\n");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
