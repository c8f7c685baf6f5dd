// Baseline of an exchange: plain copies to other GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

// Copies `bytes` (a multiple of 16) from the current GPU's memory to a peer's, by plain stores.
void StartPeerCopy(const void* from, void* to, size_t bytes, int blocks, cudaStream_t stream);
