#include "comm/device/mpi/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace switchyard::mpi {
namespace {

constexpr char kName[] = "libmpi.so.40";  // of Open MPI 3, 4 and 5

template <typename Pointer>
bool Find(void* library, const char* name, Pointer& pointer) {
  pointer = reinterpret_cast<Pointer>(dlsym(library, name));
  return pointer != nullptr;
}

Library Load() {
  Library none;
  // RTLD_GLOBAL: Open MPI's own plugins use symbols of the library without linking it.
  void* library = dlopen(kName, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    none.missing = fmt::format("cannot load {} ({})", kName, dlerror());
    return none;
  }
  Library mpi;
  const bool complete =
      Find(library, "MPI_Init_thread", mpi.Init_thread) &&
      Find(library, "MPI_Finalize", mpi.Finalize) &&
      Find(library, "MPI_Comm_rank", mpi.Comm_rank) &&
      Find(library, "MPI_Comm_size", mpi.Comm_size) && Find(library, "MPI_Isend", mpi.Isend) &&
      Find(library, "MPI_Irecv", mpi.Irecv) && Find(library, "MPI_Improbe", mpi.Improbe) &&
      Find(library, "MPI_Imrecv", mpi.Imrecv) && Find(library, "MPI_Get_count", mpi.Get_count) &&
      Find(library, "MPI_Test", mpi.Test) && Find(library, "MPI_Testall", mpi.Testall) &&
      Find(library, "MPI_Type_create_hindexed", mpi.Type_create_hindexed) &&
      Find(library, "MPI_Type_commit", mpi.Type_commit) &&
      Find(library, "MPI_Type_free", mpi.Type_free) &&
      Find(library, "ompi_mpi_comm_world", mpi.comm_world) &&
      Find(library, "ompi_mpi_byte", mpi.byte) &&
      Find(library, "ompi_mpi_datatype_null", mpi.datatype_null) &&
      Find(library, "ompi_request_null", mpi.request_null);
  if (complete) return mpi;
  none.missing = fmt::format("{} is not Open MPI", kName);
  return none;
}

}  // namespace

const Library& Library::Get() {
  static const Library library = Load();
  return library;
}

}  // namespace switchyard::mpi
