// File descriptors that outlive the process of a rank, such as those of GPU memory.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/net/file_descriptor.h"

namespace switchyard {

// A record and descriptors that a rank leaves for the next process of the rank. They are in the
// queue of a pair of sockets, whose ends the parent and the rank hold. So the parent needs no
// thread for them, and they exist as long as the parent holds the sockets. At every instant there
// is either a whole record with its descriptors, or none.
//
// The parent creates the object, and its rank inherits it. While the rank lives, only the rank
// calls Put, Get and Clear. One thread at a time uses the object.
class KeptDescriptors {
 public:
  // The kernel passes at most 253 descriptors at once, of which the record takes one.
  static constexpr int kMost = 252;
  struct Kept {
    std::string record;
    std::vector<FileDescriptor> descriptors;
  };

  KeptDescriptors() = default;      // not valid
  static KeptDescriptors Create();  // Error kResource if there are no free descriptors
  // The inherited ends, which the object owns and closes on exec. Error kInvalid if they are none.
  static KeptDescriptors FromFds(int in, int out);

  bool valid() const { return in_.get() >= 0; }
  std::vector<int> fds() const { return {in_.get(), out_.get()}; }  // for inheritance

  // Replaces what is kept. The caller keeps its own descriptors. Error kResource if the kernel
  // refuses; then nothing is kept.
  void Put(std::string_view record, const std::vector<int>& descriptors);
  // Duplicates of what is kept, which stays kept; nullopt: nothing. Error kResource if there are no
  // free descriptors.
  std::optional<Kept> Get() const;
  void Clear();

 private:
  KeptDescriptors(FileDescriptor in, FileDescriptor out)
      : in_(std::move(in)), out_(std::move(out)) {}
  std::optional<std::vector<FileDescriptor>> Peek() const;

  FileDescriptor in_, out_;
};

}  // namespace switchyard
