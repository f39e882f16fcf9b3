"""Sources of vLLM and SGLang out of an unpacked wheel, without the engines' dependencies: some modules are the real ones, and whatever these
import of the engine besides is made up, so that classes can be made and called on one rank."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch


class _OfAnything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Anything(metaclass=_OfAnything):
    """Has every attribute, and can be called, entered and iterated; a class of it can be a base."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a decorator it leaves a function as it is.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Anything()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, key: Any) -> Any:
        return Anything()

    def __bool__(self) -> bool:
        # An object of a class that an engine derives from a made-up one is something.
        return type(self) is not Anything

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__


class _MadeUp(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # A name like that of a class is a class, since it may be a base, or in an annotation.
        made = type(name, (Anything,), {}) if name[:1].isupper() and not name.isupper() else Anything()
        setattr(self, name, made)
        return made


class Sources(MetaPathFinder, Loader):
    """Finds modules of a package: `real` ones where they were unpacked, all others made up, with names that `given` says."""

    def __init__(self, folder: Path, package: str, real: set[str], given: dict[str, dict[str, Any]]) -> None:
        self.folder, self.package, self.real, self.given = folder, package, real, given

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.package and not fullname.startswith(f"{self.package}."):
            return None
        if fullname in self.real:
            file = self.folder.joinpath(*fullname.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _MadeUp(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(self.given.get(module.__name__, {}))


@contextlib.contextmanager
def sources(folder: Path, package: str, real: set[str], given: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Has imports of a package find sources; forgets its modules at the end."""
    assert not any(name.partition(".")[0] == package for name in sys.modules), f"{package} is imported already"
    finder = Sources(folder, package, real, given)
    sys.meta_path.insert(0, finder)
    # What engines take from it are names of configurations, and it takes seconds to import.
    transformers = sys.modules.get("transformers")
    sys.modules["transformers"] = _MadeUp("transformers")
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if transformers is None:
            del sys.modules["transformers"]
        else:
            sys.modules["transformers"] = transformers
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


def triton() -> dict[str, Any]:
    """What engines take from Triton: the real one, or one whose kernels cannot be launched."""
    try:
        import triton as real
        import triton.language as tl

        return {"triton": real, "tl": tl, "HAS_TRITON": True}
    except ImportError:
        made = types.SimpleNamespace(
            __version__="3.6.0",
            jit=lambda function=None, **_: function if function is not None else (lambda it: it),
            cdiv=lambda one, other: -(-one // other),
            next_power_of_2=lambda number: 1 << (number - 1).bit_length(),
        )
        return {"triton": made, "tl": Anything(), "HAS_TRITON": False}


def version_of(folder: Path, package: str) -> str:
    """The version of an unpacked wheel."""
    (found,) = folder.glob(f"{package}-*.dist-info")
    return found.name[len(package) + 1 : -len(".dist-info")]


def set_weight_attrs(weight: Any, attributes: dict[str, Any] | None) -> None:
    for name, value in (attributes or {}).items():
        setattr(weight, name, value)


def vllm_given(version: str, config: Callable[[], Any], rank: int = 0, ranks: int = 1) -> dict[str, dict[str, Any]]:
    """What stands for the rest of vLLM, of one rank of several."""
    pin = torch.cuda.is_available()
    group = types.SimpleNamespace(rank_in_group=rank, world_size=ranks)
    platform = types.SimpleNamespace(
        is_cuda=lambda: pin,
        is_cuda_alike=lambda: pin,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_arch_support_pdl=lambda: False,
        is_device_capability_family=lambda family, index=0: False,
        device_name="cuda" if pin else "cpu",
    )

    class Parameter(torch.nn.Parameter):
        def __new__(cls, data: torch.Tensor, **_: Any) -> Any:
            return super().__new__(cls, data, requires_grad=False)

        def __init__(self, data: torch.Tensor, weight_loader: Any = None, **others: Any) -> None:
            set_weight_attrs(self, {"weight_loader": weight_loader, **others})

    def scale(kind: Any, parts: list[int], width: int, block: Any, weight_loader: Any, scale_dtype: torch.dtype = torch.float32) -> Any:
        return kind(data=torch.full((len(parts),), torch.finfo(scale_dtype).min, dtype=scale_dtype), weight_loader=weight_loader)

    class VocabParallelEmbedding(torch.nn.Module):
        """Rows in equal parts, without rows that were added."""

        def __init__(
            self, num_embeddings: int, embedding_dim: int, *, params_dtype: Any, padding_size: int, prefix: str, quant_method: Any,
            parallel_group: Any, reduce_results: bool = True,
        ) -> None:  # fmt: skip
            super().__init__()
            self.tp_size, self.parallel_group, self.reduce_results = parallel_group.world_size, parallel_group, reduce_results
            self.org_vocab_size = self.num_embeddings = num_embeddings
            self.embedding_dim, self.params_dtype, self.quant_method = embedding_dim, params_dtype, quant_method
            each = num_embeddings // self.tp_size
            first = parallel_group.rank_in_group * each
            self.shard_indices = types.SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=first + each)
            quant_method.create_weights(
                self, embedding_dim, [each], embedding_dim, num_embeddings, params_dtype=params_dtype, weight_loader=self.weight_loader
            )

        def weight_loader(self, param: Any, loaded_weight: torch.Tensor) -> None:
            param.data.copy_(loaded_weight)

    def view(tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory as a GPU sees it."""
        if not torch.cuda.is_available():
            return tensor
        interface = {"shape": tuple(tensor.view(torch.uint8).shape), "typestr": "|u1", "data": (tensor.data_ptr(), False), "version": 3}
        held = types.SimpleNamespace(__cuda_array_interface__=interface, tensor=tensor)
        return torch.as_tensor(held, device="cuda").view(tensor.dtype)

    class Config:
        def __post_init__(self) -> None:
            pass

    class AutoWeightsLoader:
        def __init__(self, module: torch.nn.Module) -> None:
            self.parameters = dict(module.named_parameters())

        def load_weights(self, weights: Any) -> set[str]:
            for name, weight in weights:
                self.parameters[name].weight_loader(self.parameters[name], weight)
            return {name for name, _ in weights}

    class State:
        def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
            return {}

    same = {"get_current_vllm_config": config}
    return {
        "vllm": {"__version__": version},
        "vllm.config": same,
        "vllm.config.vllm": {"VllmConfig": Config},
        "vllm.compilation.breakable_cudagraph": {"eager_break_during_capture": lambda function: function},
        "vllm.distributed": {
            "get_tensor_model_parallel_rank": lambda: rank,
            "get_tensor_model_parallel_world_size": lambda: ranks,
            "get_engram_dp_size": lambda: 1,
            "get_engram_dp_group": lambda: None,
            "get_etp_group": lambda: group,
            "get_tp_group": lambda: group,
        },
        "vllm.forward_context": {"is_forward_context_available": lambda: False},
        "vllm.model_executor.utils": {"set_weight_attrs": set_weight_attrs},
        "vllm.model_executor.parameter": {
            "ModelWeightParameter": type("ModelWeightParameter", (Parameter,), {}),
            "PerTensorScaleParameter": type("PerTensorScaleParameter", (Parameter,), {}),
        },
        "vllm.model_executor.layers.quantization.utils.fp8_utils": {
            "create_fp8_scale_parameter": scale,
            "is_fp8": lambda it: "float8" in str(getattr(it, "dtype", it)),
        },
        # The largest number of E2M1.
        "vllm.scalar_type": {"scalar_types": types.SimpleNamespace(float4_e2m1f=types.SimpleNamespace(max=lambda: 6.0))},
        "vllm.model_executor.layers.vocab_parallel_embedding": {"VocabParallelEmbedding": VocabParallelEmbedding},
        "vllm.v1.worker.gpu.model_states.default": {"DefaultModelState": State},
        "vllm.v1.worker.gpu.model_states.mamba_hybrid": {"MambaHybridModelState": State},
        "vllm.model_executor.models.utils": {"AutoWeightsLoader": AutoWeightsLoader},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": triton(),
        "vllm.utils.math_utils": {"round_up": lambda number, to: -(-number // to) * to},
        "vllm.utils.platform_utils": {"is_uva_available": lambda: True},
        "vllm.utils.torch_utils": {"get_accelerator_view_from_cpu_tensor": view, "direct_register_custom_op": lambda **_: None},
    }


#: The modules of vLLM's that are real.
VLLM_REAL = {
    "vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils",
    "vllm.models.deepseek_v41.common.engram",
    "vllm.models.deepseek_v41.nvidia.model_state",
    "vllm.models.qwen4_exp.common.ngram_embedding",
    "vllm.models.qwen4_exp.common.ops.ple",
    "vllm.models.qwen4_exp.common.ple",
    "vllm.models.qwen4_exp.nvidia.model_state",
    "vllm.models.qwen4_exp.nvidia.ngram_embedding",
}


def sglang_given(version: str, rank: int = 0, ranks: int = 1) -> dict[str, dict[str, Any]]:
    """What stands for the rest of SGLang, of one rank of several."""
    pin = torch.cuda.is_available()

    class Flag:
        def __init__(self, value: Any = False) -> None:
            self.value = value

        def get(self) -> Any:
            return self.value

        @contextlib.contextmanager
        def override(self, value: Any) -> Iterator[None]:
            before, self.value = self.value, value
            yield
            self.value = before

    class Flags:
        SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE = Flag()
        SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS = Flag()

        def __getattr__(self, name: str) -> Any:
            return Flag()

    class VocabParallelEmbedding(torch.nn.Module):
        """Rows in equal parts, without rows that were added."""

        def __init__(
            self, num_embeddings: int, embedding_dim: int, *, params_dtype: Any, output_dtype: Any = None, use_attn_tp_group: bool = False
        ) -> None:
            super().__init__()
            self.tp_size, self.enable_tp, self.use_attn_tp_group = ranks, ranks > 1, use_attn_tp_group
            self.quant_config, self.quant_method = None, unquantized()
            self.org_vocab_size = self.num_embeddings = self.org_vocab_size_padded = self.num_embeddings_padded = num_embeddings
            self.padding_size, self.num_added_embeddings, self.use_presharded_weights = 64, 0, False
            each = num_embeddings // ranks
            self.num_embeddings_per_partition = self.num_org_embeddings_per_partition = each
            self.num_added_embeddings_per_partition, self.embedding_dim = 0, embedding_dim
            self.shard_indices = types.SimpleNamespace(org_vocab_start_index=rank * each, org_vocab_end_index=(rank + 1) * each)
            self.weight = torch.nn.Parameter(torch.empty(each, embedding_dim, dtype=params_dtype), requires_grad=False)

        def weight_loader(self, param: Any, loaded_weight: torch.Tensor) -> None:
            param.data.copy_(loaded_weight)

    unquantized = type("UnquantizedEmbeddingMethod", (), {})
    parallel = types.SimpleNamespace(tp_size=ranks, tp_rank=rank, attn_dp_size=1, attn_cp_size=1, tp_group=None)

    class ModelRunner:
        def forward(self, forward_batch: Any, skip_attn_backend_init: Any = None) -> Any:
            return forward_batch

    return {
        "sglang": {"__version__": version},
        "sglang.kernels.ops.quantization.fp4_fake_quant": {"FP8_BLOCK_SIZE": 32},
        "sglang.srt.environ": {"envs": Flags()},
        "sglang.srt.distributed": {"tensor_model_parallel_all_reduce": lambda rows: rows},
        "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": lambda: False},
        "sglang.srt.layers.vocab_parallel_embedding": {"VocabParallelEmbedding": VocabParallelEmbedding},
        "sglang.srt.layers.quantization.unquant": {"UnquantizedEmbeddingMethod": unquantized},
        "sglang.srt.model_executor.model_runner": {"ModelRunner": ModelRunner},
        "sglang.srt.runtime_context": {"get_parallel": lambda: parallel},
        "sglang.srt.utils": {"is_cuda": lambda: pin, "is_hip": lambda: False, "is_gfx95_supported": lambda: False},
    }


#: The modules of SGLang's that are real.
SGLANG_REAL = {"sglang.srt.layers.engram", "sglang.srt.models.qwen4_exp", "sglang.srt.models.qwen4_exp_ple_table"}
