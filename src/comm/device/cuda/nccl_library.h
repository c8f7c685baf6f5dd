// NCCL, loaded at run time. The few declarations of nccl.h that are needed are repeated here, so a
// build does not need the header. NCCL's ABI is stable.
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

// The leading fields of ncclConfig_t. NCCL treats fields beyond `size`, and fields newer than
// `version`, as unset.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int cluster_size = INT_MIN;  // unset
};

constexpr int kNcclSuccess = 0, kNcclInProgress = 7;  // ncclResult_t
constexpr int kNcclUint8 = 1, kNcclFloat32 = 7;       // ncclDataType_t
constexpr int kNcclSum = 0;                           // ncclRedOp_t

// Function pointers of libnccl.so.2. Calls return ncclResult_t.
struct NcclLibrary {
  static constexpr int kOldest = 22800;      // 2.28
  static constexpr int kSharesGpus = 23000;  // 2.30

  // Searches the loader's path, then the directory named by SWITCHYARD_NCCL_LIBRARY, once per
  // process. First disables NVLink multicast in the process environment. If no library is new
  // enough, the pointers are null and `missing` gives the reason.
  static const NcclLibrary& Get();

  std::string missing;
  int version = 0;
  // Whether ranks may share a GPU. NCCL rejects this unless its version is at least 2.30 and the
  // environment has NCCL_MULTI_RANK_GPU_ENABLE=1. Used by tests with more rank processes than GPUs.
  // Ranks that are threads of one process would deadlock.
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
