#include "comm/device/cuda/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <vector>

namespace switchyard::cuda {
namespace {

std::string VersionText(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

template <typename F>
bool Find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

// Returns an error text, empty on success.
std::string Load(const std::string& path, NcclLibrary& nccl) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("cannot load {} ({})", path, dlerror());
  const bool complete =
      Find(library, "ncclGetVersion", nccl.GetVersion) &&
      Find(library, "ncclGetUniqueId", nccl.GetUniqueId) &&
      Find(library, "ncclCommInitRankConfig", nccl.CommInitRankConfig) &&
      Find(library, "ncclCommGetAsyncError", nccl.CommGetAsyncError) &&
      Find(library, "ncclCommFinalize", nccl.CommFinalize) &&
      Find(library, "ncclCommDestroy", nccl.CommDestroy) &&
      Find(library, "ncclCommAbort", nccl.CommAbort) &&
      Find(library, "ncclGetErrorString", nccl.GetErrorString) &&
      Find(library, "ncclGetLastError", nccl.GetLastError) &&
      Find(library, "ncclGroupStart", nccl.GroupStart) &&
      Find(library, "ncclGroupEnd", nccl.GroupEnd) &&
      Find(library, "ncclAllReduce", nccl.AllReduce) &&
      Find(library, "ncclBroadcast", nccl.Broadcast) && Find(library, "ncclReduce", nccl.Reduce) &&
      Find(library, "ncclSend", nccl.Send) && Find(library, "ncclRecv", nccl.Recv);
  std::string wrong;
  if (!complete) {
    wrong = fmt::format("{} lacks required NCCL functions", path);
  } else if (nccl.GetVersion(&nccl.version) != kNcclSuccess) {
    wrong = fmt::format("{}: ncclGetVersion failed", path);
  } else if (nccl.version < NcclLibrary::kOldest) {
    wrong = fmt::format("{} is NCCL {}, need {} or newer", path, VersionText(nccl.version),
                        VersionText(NcclLibrary::kOldest));
  }
  const char* sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  nccl.shares_gpus = nccl.version >= NcclLibrary::kSharesGpus && sharing != nullptr &&
                     std::string_view(sharing) == "1";
  if (!wrong.empty()) dlclose(library);
  return wrong;
}

NcclLibrary Search() {
  // NVLink multicast (NVLS) can put the GPUs of a host out of service.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  std::vector<std::string> paths = {"libnccl.so.2"};
  if (const char* folder = std::getenv("SWITCHYARD_NCCL_LIBRARY"))
    paths.push_back(std::string(folder) + "/libnccl.so.2");
  std::string missing;
  for (const std::string& path : paths) {
    NcclLibrary nccl;
    const std::string wrong = Load(path, nccl);
    if (wrong.empty()) return nccl;
    missing += (missing.empty() ? "" : "; ") + wrong;
  }
  NcclLibrary none;
  none.missing = missing;
  return none;
}

}  // namespace

const NcclLibrary& NcclLibrary::Get() {
  static const NcclLibrary library = Search();
  return library;
}

}  // namespace switchyard::cuda
