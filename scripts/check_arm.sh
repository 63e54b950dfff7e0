#!/usr/bin/env bash
# Do the NEON kernels give the bits of plain C++? Builds them for 64-bit ARM and runs the comparison
# under an emulator; two minutes. Needs Debian's g++-aarch64-linux-gnu and qemu-user.
#   scripts/check_arm.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/arm}
compiler=${CXX_ARM:-aarch64-linux-gnu-g++}
for tool in "$compiler" qemu-aarch64; do
  command -v "$tool" >/dev/null || { echo "check_arm: $tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 2; }
done
mkdir -p "$build"
flags=(-O2 -std=c++20 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -pthread -Inative)
for source in native/check/agree.cpp native/isa*.cpp native/ops*.cpp native/pack.cpp native/pool.cpp; do
  own=()
  [[ $source == native/isa_neon.cpp ]] && own=(-march=armv8.2-a+dotprod)
  "$compiler" "${flags[@]}" "${own[@]}" -c "$source" -o "$build/$(basename "$source" .cpp).o"
done
"$compiler" -static -pthread "$build"/*.o -o "$build/agree"
qemu-aarch64 "$build/agree"
