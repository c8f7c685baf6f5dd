#include "core/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace switchyard {

MappedFile::MappedFile(std::string file_name, const uint8_t* bytes, size_t num_bytes)
    : name(std::move(file_name)), data(bytes), size(num_bytes) {}
MappedFile::~MappedFile() { munmap(const_cast<uint8_t*>(data), size); }

std::shared_ptr<const MappedFile> MapFile(const RegularFile& file) {
  const std::string name = file.stamp().path.string();
  if (file.size() == 0) throw Invalid("{}: empty; it is truncated", name);
  void* p = mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (p == MAP_FAILED) throw Resource("{}: cannot map: {}", name, std::strerror(errno));
  return std::make_shared<const MappedFile>(name, static_cast<const uint8_t*>(p), file.size());
}

}  // namespace switchyard
