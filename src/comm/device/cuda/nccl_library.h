// NCCL as it is found at run time. The few declarations that are needed of nccl.h, whose binary
// interface is stable, stand here, so that a build needs none.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>
#include <string>

namespace switchyard::cuda {

struct NcclUniqueId {
  char bytes[128] = {};
};

struct NcclHandle;  // ncclComm_t points to one

// The head of ncclConfig_t: NCCL takes what lies beyond `size` as not given, and so what is newer
// than `version`.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int cluster_size = INT_MIN;  // not given
};

constexpr int kNcclSuccess = 0, kNcclInProgress = 7;  // of ncclResult_t
constexpr int kNcclUint8 = 1, kNcclFloat32 = 7;       // of ncclDataType_t
constexpr int kNcclSum = 0;                           // of ncclRedOp_t

// The functions of libnccl.so.2. Calls return ncclResult_t.
struct NcclLibrary {
  static constexpr int kOldest = 22800;      // 2.28
  static constexpr int kSharesGpus = 23000;  // 2.30

  // Looks along the loader's path and then in the directory that SWITCHYARD_NCCL_LIBRARY names,
  // once in a process; switches NVLink multicast off in its environment first. Null functions where
  // no library is new enough; `missing` then says so.
  static const NcclLibrary& Get();

  std::string missing;
  int version = 0;
  // Whether ranks may share a GPU, which NCCL refuses otherwise: from 2.30 on, where the
  // environment has NCCL_MULTI_RANK_GPU_ENABLE=1. For tests of more rank processes than GPUs; as
  // threads of one process such ranks wait for one another for good.
  bool shares_gpus = false;

  int (*GetVersion)(int*) = nullptr;
  int (*GetUniqueId)(NcclUniqueId*) = nullptr;
  int (*CommInitRankConfig)(NcclHandle**, int size, NcclUniqueId, int rank, NcclConfig*) = nullptr;
  int (*CommGetAsyncError)(NcclHandle*, int* state) = nullptr;
  int (*CommFinalize)(NcclHandle*) = nullptr;
  int (*CommDestroy)(NcclHandle*) = nullptr;
  int (*CommAbort)(NcclHandle*) = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  const char* (*GetLastError)(NcclHandle*) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*AllReduce)(const void* in, void* out, size_t count, int type, int op, NcclHandle*,
                   cudaStream_t) = nullptr;
  int (*Broadcast)(const void* in, void* out, size_t count, int type, int root, NcclHandle*,
                   cudaStream_t) = nullptr;
  int (*Reduce)(const void* in, void* out, size_t count, int type, int op, int root, NcclHandle*,
                cudaStream_t) = nullptr;
  int (*Send)(const void* from, size_t count, int type, int peer, NcclHandle*,
              cudaStream_t) = nullptr;
  int (*Recv)(void* to, size_t count, int type, int peer, NcclHandle*, cudaStream_t) = nullptr;
};

}  // namespace switchyard::cuda
