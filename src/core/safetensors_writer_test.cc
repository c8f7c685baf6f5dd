#include "core/safetensors_writer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include "core/safetensors.h"
#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SafetensorsWriterTest, WhatIsWrittenReadsBack) {
  const std::vector<float> floats{1.5f, -2.0f, 3.25f};
  const std::vector<BF16> halves{ToBF16(1.0f), ToBF16(-4.0f)};
  SafetensorsWriter writer;
  writer.AddView("floats", DType::kF32, {3, 1}, floats.data());
  writer.AddView("halves", DType::kBF16, {2}, halves.data());
  writer.Add("ids", {2}, std::vector<int64_t>{7, -1});
  writer.Add("none", {0, 4}, std::vector<int32_t>{});
  writer.SetMetadata("format", "pt");
  EXPECT_EQ(writer.data_bytes(), 3 * 4 + 2 * 2 + 2 * 8u);
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "writer.safetensors";
  writer.Write(path);

  const std::string bytes = ReadFile(path);
  const std::span<const uint8_t> head(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const TensorEntries entries = ParseSafetensorsHeader(head, bytes.size(), "writer.safetensors");
  ASSERT_EQ(entries.size(), 4u);
  const TensorEntry& entry = entries.at("floats");
  EXPECT_EQ(entry.dtype, DType::kF32);
  EXPECT_EQ(entry.shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(bytes.substr(entry.begin, 12),
            std::string(reinterpret_cast<const char*>(floats.data()), 12));
  EXPECT_EQ(entries.at("halves").dtype, DType::kBF16);
  EXPECT_EQ(std::memcmp(bytes.data() + entries.at("halves").begin, halves.data(), 4), 0);
  EXPECT_EQ(entries.at("none").begin, entries.at("none").end);
  EXPECT_THAT(bytes, HasSubstr(R"("format":"pt")"));
}

TEST(SafetensorsWriterTest, AFullDiskLeavesTheOldFile) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "full.safetensors";
  std::ofstream(path) << "old";
  const std::vector<float> zeros(1 << 16);
  SafetensorsWriter writer;
  writer.AddView("zeros", DType::kF32, {1 << 16}, zeros.data());

  // A file size limit stands in for a full disk.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = 100'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string error = ErrorOf([&] { writer.Write(path); }, ErrorKind::kResource);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_THAT(error, HasSubstr("full.safetensors: cannot be written: File too large"));
  EXPECT_EQ(ReadFile(path), "old");
  EXPECT_FALSE(fs::exists(path.string() + ".part"));
}

TEST(SafetensorsWriterTest, AMissingFolderIsNamed) {
  EXPECT_THAT(ErrorOf([] { SafetensorsWriter().Write("/no/such/folder/x.safetensors"); },
                      ErrorKind::kResource),
              HasSubstr("/no/such/folder/x.safetensors: cannot be written: No such file"));
}

}  // namespace
}  // namespace switchyard
