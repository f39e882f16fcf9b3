#!/usr/bin/env bash
# build.sh SOURCES OUT: builds the programs of rivals' caches for sm_90 from their public sources, side by side. Logs go to OUT/*.log. No GPU is needed.
# SOURCES has HierarchicalKV, HugeCTR (its folder gpu_cache), nv-embedding-cache and json (nlohmann's), as their repositories have them. A program whose
# repository is not there is left out. README.md has the commits that were measured.
set -u
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$1" && pwd) && mkdir -p "$2" && out=$(cd "$2" && pwd)
flags=(-std=c++17 -O3 -arch=sm_90 --expt-relaxed-constexpr --expt-extended-lambda -w -I"$here")
nve=("${flags[@]}" --use_fast_math -I"$sources/nv-embedding-cache" -I"$sources/nv-embedding-cache/include" -I"$sources/json/single_include" -DNVE_CACHE_LINE_SIZE=64
  -DNVE_FEATURE_HT_MASK_64=1 -DNVE_FEATURE_HT_KEY_64=1 -DNVE_FEATURE_HT_PART_FNV1A=1 -DNVE_FEATURE_HT_KERNEL_64=1)
# The programs may run on another machine than this one: what they need beside the driver and the C library is inside.
linked=(-arch=sm_90 -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
step() { # NAME COMMAND…: runs the command, with its time in the log
  local name=$1 began=$SECONDS && shift
  "$@" >"$out/$name.log" 2>&1
  echo "$name: exit $?, $((SECONDS - began)) s: $*" >>"$out/$name.log"
}
programs=()
if [ -d "$sources/HierarchicalKV" ]; then
  programs+=(hierarchical_kv)
  step hierarchical_kv nvcc "${flags[@]}" "${linked[@]:1}" -I"$sources/HierarchicalKV/include" "$here/hierarchical_kv.cu" -o "$out/hierarchical_kv" &
fi
if [ -d "$sources/HugeCTR" ]; then
  programs+=(hugectr_gpu_cache)
  step hugectr_gpu_cache nvcc "${flags[@]}" "${linked[@]:1}" -I"$sources/HugeCTR/gpu_cache/include" "$here/hugectr_gpu_cache.cu" \
    "$sources/HugeCTR/gpu_cache/src/nv_gpu_cache.cu" -o "$out/hugectr_gpu_cache" &
fi
if [ -d "$sources/nv-embedding-cache" ]; then
  programs+=(nve)
  # Keys of 8 B alone are used. Without the instances for others, which are at the ends of two files, these compile in half the time.
  sed 's/^template class GpuTable<int32_t>;$//; /^template void GpuTable<int32_t>/,/;$/d' "$sources/nv-embedding-cache/src/gpu_table.cu" >"$work/gpu_table.cu"
  sed 's/^template class LinearUVMEmbeddingLayer<int32_t>;$//' "$sources/nv-embedding-cache/src/linear_embedding_layer.cu" >"$work/linear_embedding_layer.cu"
  step nve-gpu_table nvcc "${nve[@]}" -c "$work/gpu_table.cu" -o "$work/gpu_table.o" &
  step nve-linear_embedding_layer nvcc "${nve[@]}" -c "$work/linear_embedding_layer.cu" -o "$work/linear_embedding_layer.o" &
  step nve-program nvcc "${nve[@]}" -c "$here/nve.cu" -o "$work/nve.o" &
  for file in common default_allocator execution_context insert_heuristic layer_utils table thread_pool thread_pool_base numa_support; do
    step "nve-$file" nvcc "${nve[@]}" -c "$sources/nv-embedding-cache/src/$file.cpp" -o "$work/$file.o" &
  done
fi
wait
if [ -d "$sources/nv-embedding-cache" ]; then
  # A library of the driver's functions to link with, for there may be no driver here.
  nm -u "$work"/*.o | awk '$2 ~ /^cu[A-Z]/ && !seen[$2]++ { print "void " $2 "(void) {}" }' >"$work/driver.c"
  cc -shared -Wl,-soname,libcuda.so.1 "$work/driver.c" -o "$work/libcuda.so"
  step nve nvcc "${linked[@]}" "$work"/*.o "$work/libcuda.so" -o "$out/nve"
fi
grep -h ': exit' "$out"/*.log
for program in "${programs[@]}"; do [ -x "$out/$program" ] || exit 1; done
