#!/usr/bin/env bash
# Print the arguments with which uv finds torch, and say on stderr which build that is and why.
#
#   scripts/torch_source.sh UV PYTHON VERSION     an empty line means the standard build, which brings CUDA along
#
# A Linux machine without an NVIDIA GPU needs only the CPU build, a tenth of the size. PyPI does not have it, and
# PyTorch's own index may be out of reach: uv tries it for 10 s at most.
set -u
uv=$1 python=$2 version=$3

standard() { echo "PyTorch: the standard build, several GB with CUDA, because $1." >&2; echo; exit 0; }

[ "$(uname -s)" = Linux ] || { echo "PyTorch: the standard build for $(uname -s)." >&2; echo; exit 0; }
nvidia-smi -L >/dev/null 2>&1 && standard "this machine has an NVIDIA GPU"
UV_HTTP_TIMEOUT=5 UV_HTTP_RETRIES=0 timeout 10 \
	"$uv" pip install --dry-run --reinstall-package torch --no-deps --python "$python" --torch-backend cpu \
	"torch==$version" >/dev/null 2>&1 || standard "PyTorch's index of CPU builds cannot be reached"
echo "PyTorch: the CPU build, because this machine has no NVIDIA GPU." >&2
echo "--torch-backend cpu"
