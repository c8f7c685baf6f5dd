// Memory of a device that outlives the process that has filled it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Memory of a device in chunks, mapped one after another into a range of reserved addresses. A
// chunk exists while a process has mapped it or holds its file descriptor. Used by one thread.
class DeviceChunks {
 public:
  virtual ~DeviceChunks() = default;
  virtual std::byte* base() const = 0;  // the first reserved address, aligned to 256 bytes
  virtual size_t capacity() const = 0;  // number of reserved bytes
  virtual size_t unit() const = 0;      // offsets and sizes of chunks are multiples of it
  // Maps a new chunk of zeros, and returns a descriptor of it that the caller closes. Error
  // kResource if there is too little memory or no free descriptor.
  virtual int Create(size_t offset, size_t bytes) = 0;
  // Maps the chunk of `fd`, which stays open. Error kResource if it is no chunk of this size.
  virtual void Import(int fd, size_t offset, size_t bytes) = 0;
  virtual void Zero(size_t offset, size_t bytes) = 0;  // of mapped chunks
  // Waits for the device, and unmaps all chunks.
  virtual void Unmap() = 0;
  virtual bool Works() = 0;  // waits for the device; false if its work has failed
};

// Allocations of a model, such as its weights, in the order in which the model makes them. When the
// model has made and filled all of them, the store is filled. A model that is made again, in this
// process or in another one that has mapped the store, makes the same allocations in the same
// order, and gets the same memory with its contents.
//
// Owned by the rank's loop. Used by the rank's thread, but any thread may free an allocation.
// Allocations keep the memory, so they may outlive the store.
class DeviceStore {
 public:
  // `expected`: estimate of the bytes of all allocations. Chunks are sized by it, so that the last
  // one is not mostly unused.
  DeviceStore(std::unique_ptr<DeviceChunks> chunks, size_t expected);
  ~DeviceStore();
  DeviceStore(const DeviceStore&) = delete;
  DeviceStore& operator=(const DeviceStore&) = delete;

  // Fills a new store with the memory of another one, as its Record describes it. `key`: as for
  // Record. False if the record is malformed, or is that of another key. Error kResource if a chunk
  // cannot be mapped. The store cannot be used after either.
  bool Map(uint64_t key, std::string_view record, const std::vector<int>& fds);

  // Call before a model makes its allocations.
  void Begin();
  // Memory that is zeroed unless filled(), aligned to 256 bytes. Error kResource if the device
  // has too little memory; if filled, also if the model makes another allocation than the first
  // one did. If filled, an allocation that the first model had freed before Finish has an address
  // without memory, because its contents are not needed.
  std::shared_ptr<std::byte> Allocate(size_t bytes);
  // Whether allocations have their contents, so that nothing is to be copied to them.
  bool filled() const;
  // Call when a model has made all allocations, and the device has completed the copies. Error
  // kResource if filled and the model has made fewer allocations than the first one.
  void Finish();

  // The record of a filled store, and the descriptors of its chunks, which the store owns.
  std::string Record(uint64_t key) const;
  const std::vector<int>& descriptors() const;

  // Frees the memory of a filled store, whose addresses stay reserved. Waits for the device.
  // Restore maps zeroed memory at the same addresses, and has new descriptors; if it throws Error
  // kResource, the memory stays free.
  void Release();
  void Restore();

  size_t bytes() const;  // of all chunks
  // Waits for the device. False if the memory cannot be used any more in this process.
  bool Works();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace switchyard
