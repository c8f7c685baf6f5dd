#include "core/device_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/test_random.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr size_t kUnit = size_t{2} << 20, kCapacity = size_t{1} << 30;
constexpr uint64_t kKey = 4711;

// Chunks in memory of the host, which other processes could map too.
class HostChunks final : public DeviceChunks {
 public:
  explicit HostChunks(bool works = true) : works_(works) {
    void* range = mmap(nullptr, kCapacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (range == MAP_FAILED) throw Resource("no addresses");
    base_ = static_cast<std::byte*>(range);
  }
  ~HostChunks() override { munmap(base_, kCapacity); }

  std::byte* base() const override { return base_; }
  size_t capacity() const override { return kCapacity; }
  size_t unit() const override { return kUnit; }
  int Create(size_t offset, size_t bytes) override {
    EXPECT_EQ(offset % kUnit, 0u);
    EXPECT_EQ(bytes % kUnit, 0u);
    const int fd = memfd_create("chunk", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw Resource("no chunk");
    Map(fd, offset, bytes);
    return fd;
  }
  void Import(int fd, size_t offset, size_t bytes) override { Map(fd, offset, bytes); }
  void Zero(size_t offset, size_t bytes) override { std::memset(base_ + offset, 0, bytes); }
  void Unmap() override {
    EXPECT_NE(mmap(base_, kCapacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              MAP_FAILED);
  }
  bool Works() override { return works_; }

 private:
  void Map(int fd, size_t offset, size_t bytes) {
    void* at = mmap(base_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) throw Resource("the chunk cannot be mapped");
  }

  const bool works_;
  std::byte* base_ = nullptr;
};

std::unique_ptr<DeviceStore> NewStore(size_t expected = 0) {
  return std::make_unique<DeviceStore>(std::make_unique<HostChunks>(), expected);
}

// A store with the chunks of another one, as in another process.
std::unique_ptr<DeviceStore> MappedStore(const DeviceStore& from) {
  auto store = NewStore();
  EXPECT_TRUE(store->Map(kKey, from.Record(kKey), from.descriptors()));
  return store;
}

// A model: arrays of these sizes. A copy of some arrays replaces them, as stacked matrices replace
// their parts.
class TestModel {
 public:
  TestModel(DeviceStore& store, const std::vector<size_t>& sizes, bool stacks) {
    store.Begin();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!stacks || i % 3 != 0) {
        Add(store, sizes[i], i);
        continue;
      }
      TestModel parts(store);
      parts.Add(store, sizes[i], i);
      parts.Add(store, sizes[i], i);
      Add(store, 2 * sizes[i], i);
    }
    store.Finish();
  }

  // Expects that all arrays have the values of their model.
  void Expect() const {
    for (const Array& array : arrays_) {
      size_t wrong = 0;
      for (size_t i = 0; i < array.bytes; ++i)
        wrong += array.data.get()[i] == Value(array.number, i) ? 0 : 1;
      EXPECT_EQ(wrong, 0u) << array.number;
    }
  }
  std::byte* at(size_t i) const { return arrays_[i].data.get(); }

 private:
  struct Array {
    std::shared_ptr<std::byte> data;
    size_t bytes = 0, number = 0;
  };
  explicit TestModel(DeviceStore&) {}

  static std::byte Value(size_t number, size_t i) {
    return static_cast<std::byte>(7 * number + i % 251);
  }
  void Add(DeviceStore& store, size_t bytes, size_t number) {
    Array array{store.Allocate(bytes), bytes, number};
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data.get()) % 256, 0u);
    if (!store.filled()) {
      EXPECT_EQ(std::count(array.data.get(), array.data.get() + bytes, std::byte{0}),
                static_cast<ptrdiff_t>(bytes));
      for (size_t i = 0; i < bytes; ++i) array.data.get()[i] = Value(number, i);
    }
    arrays_.push_back(std::move(array));
  }

  std::vector<Array> arrays_;
};

std::vector<size_t> RandomSizes(TestRandom& random) {
  std::vector<size_t> sizes(20);
  for (size_t& size : sizes) size = 1 + random() % (size_t{1} << (8 + random() % 14));
  return sizes;
}

TEST(DeviceStoreTest, ANewModelGetsTheWeightsOfTheFirstOne) {
  TestRandom random(1);
  for (const bool stacks : {false, true}) {
    const std::vector<size_t> sizes = RandomSizes(random);
    const auto store = NewStore(std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
    EXPECT_FALSE(store->filled());
    std::byte* first = nullptr;
    {
      const TestModel model(*store, sizes, stacks);
      model.Expect();
      first = model.at(1);
    }
    EXPECT_TRUE(store->filled());
    for (int epoch = 0; epoch < 2; ++epoch) {
      const TestModel again(*store, sizes, stacks);
      again.Expect();
      EXPECT_EQ(again.at(1), first);
    }
  }
}

TEST(DeviceStoreTest, AnotherProcessMapsTheWeights) {
  TestRandom random(2);
  const std::vector<size_t> sizes = RandomSizes(random);
  auto store = NewStore();
  std::optional<TestModel> model(std::in_place, *store, sizes, true);
  const auto other = MappedStore(*store);
  EXPECT_EQ(other->bytes(), store->bytes());
  EXPECT_EQ(other->descriptors().size(), store->descriptors().size());
  model.reset();
  store.reset();
  const TestModel mapped(*other, sizes, true);
  mapped.Expect();
}

TEST(DeviceStoreTest, WeightsOutliveTheStore) {
  auto store = NewStore();
  const TestModel model(*store, {100, 200'000}, false);
  store.reset();
  model.Expect();
}

// Freed memory is used again, so the parts of stacked matrices take no memory in the end.
TEST(DeviceStoreTest, FreedMemoryIsUsedAgain) {
  constexpr size_t kBytes = size_t{1} << 20;
  const auto store = NewStore(20 * kBytes);
  std::vector<std::shared_ptr<std::byte>> kept;
  for (int layer = 0; layer < 10; ++layer) {
    auto part = store->Allocate(kBytes), other = store->Allocate(kBytes);
    std::memset(part.get(), 1, kBytes);
    kept.push_back(store->Allocate(2 * kBytes));
    EXPECT_EQ(std::count(kept.back().get(), kept.back().get() + 2 * kBytes, std::byte{0}),
              static_cast<ptrdiff_t>(2 * kBytes));
  }
  store->Finish();
  EXPECT_EQ(store->bytes(), size_t{32} << 20);  // the smallest chunk
}

TEST(DeviceStoreTest, ChunksFitTheExpectedSize) {
  constexpr size_t kMiB = size_t{1} << 20;
  const auto store = NewStore(100 * kMiB + 1);
  const auto first = store->Allocate(60 * kMiB), second = store->Allocate(40 * kMiB);
  EXPECT_EQ(store->bytes(), 102 * kMiB);
  const auto more = store->Allocate(3 * kMiB);
  EXPECT_EQ(store->bytes(), 134 * kMiB);
  EXPECT_EQ(more.get(), second.get() + 40 * kMiB);  // an allocation may span chunks
  EXPECT_THAT(ErrorOf([&] { store->Allocate(kCapacity); }, ErrorKind::kResource),
              HasSubstr("the kept memory needs more than the 1073741824 bytes of the GPU"));
}

TEST(DeviceStoreTest, RefusesAnotherModel) {
  const auto store = NewStore();
  { const TestModel model(*store, {100, 200, 300}, false); }
  EXPECT_THAT(ErrorOf(
                  [&] {
                    TestModel(*store, {100, 201, 300}, false);
                  },
                  ErrorKind::kResource),
              HasSubstr("allocation 1 of 3 has 201 bytes"));
  EXPECT_THAT(ErrorOf(
                  [&] {
                    TestModel(*store, {100, 200, 300, 4}, false);
                  },
                  ErrorKind::kResource),
              HasSubstr("allocation 3 of 3 has 4 bytes"));
  EXPECT_THAT(ErrorOf(
                  [&] {
                    TestModel(*store, {100, 200}, false);
                  },
                  ErrorKind::kResource),
              HasSubstr("2 of 3 allocations"));
}

TEST(DeviceStoreTest, RefusesOtherRecords) {
  const auto store = NewStore();
  { const TestModel model(*store, {100, 200, 300}, false); }
  const std::string record = store->Record(kKey);
  const auto maps = [&](uint64_t key, const std::string& bytes, const std::vector<int>& fds) {
    return NewStore()->Map(key, bytes, fds);
  };
  EXPECT_TRUE(maps(kKey, record, store->descriptors()));
  EXPECT_FALSE(maps(kKey + 1, record, store->descriptors()));
  EXPECT_FALSE(maps(kKey, record, {}));
  EXPECT_FALSE(maps(kKey, "", store->descriptors()));
  EXPECT_FALSE(maps(kKey, record + "x", store->descriptors()));
  for (size_t bytes = 0; bytes < record.size(); bytes += sizeof(uint64_t))
    EXPECT_FALSE(maps(kKey, record.substr(0, bytes), store->descriptors())) << bytes;
  // An allocation outside of the chunks, and a chunk of a size that is no multiple of the unit.
  for (const size_t word : {size_t{3}, record.size() / 8 - 1}) {
    std::string wrong = record;
    const uint64_t value = kCapacity - 1;
    std::memcpy(wrong.data() + 8 * word, &value, sizeof value);
    EXPECT_FALSE(maps(kKey, wrong, store->descriptors())) << word;
  }
}

TEST(DeviceStoreTest, ReleasedMemoryComesBackAtTheSameAddresses) {
  const auto store = NewStore();
  const auto memory = store->Allocate(100'000);
  store->Finish();
  const size_t bytes = store->bytes();
  for (int round = 0; round < 2; ++round) {
    memory.get()[99'999] = std::byte{5};
    store->Release();
    EXPECT_EQ(store->bytes(), 0u);
    EXPECT_TRUE(store->descriptors().empty());
    store->Restore();
    EXPECT_EQ(store->bytes(), bytes);
    EXPECT_EQ(memory.get()[99'999], std::byte{0});
    store->Begin();
    EXPECT_EQ(store->Allocate(100'000), memory);
  }
  const auto other = MappedStore(*store);  // the record stays valid
  EXPECT_EQ(other->Allocate(100'000).get()[99'999], std::byte{0});
}

TEST(DeviceStoreTest, ReportsAFailedDevice) {
  EXPECT_TRUE(NewStore()->Works());
  EXPECT_FALSE(DeviceStore(std::make_unique<HostChunks>(false), 0).Works());
}

}  // namespace
}  // namespace switchyard
