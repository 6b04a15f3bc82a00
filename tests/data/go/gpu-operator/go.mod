// The validator of 25.3.4: by this commit, because modules of Go cannot have such a version.
module example.org/gpu-operator

go 1.26.0

require github.com/NVIDIA/gpu-operator v0.0.0-20250917190837-d73a0086a6ba
