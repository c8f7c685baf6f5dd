#include "train/app/event_log.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/temporary_directory.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

template <typename T>
T Take(std::string_view* bytes) {
  T value{};
  EXPECT_GE(bytes->size(), sizeof value);
  std::memcpy(&value, bytes->data(), std::min(sizeof value, bytes->size()));
  bytes->remove_prefix(std::min(sizeof value, bytes->size()));
  return value;
}

uint64_t TakeVarint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// The fields of a message: numbers as text, messages and strings as their bytes.
std::multimap<int, std::string> Fields(std::string_view bytes) {
  std::multimap<int, std::string> fields;
  while (!bytes.empty()) {
    const uint64_t key = TakeVarint(&bytes);
    std::string value;
    switch (key & 7) {
      case 0:
        value = std::to_string(TakeVarint(&bytes));
        break;
      case 1:
        value = std::to_string(Take<double>(&bytes));
        break;
      case 2: {
        const uint64_t size = TakeVarint(&bytes);
        value = bytes.substr(0, size);
        bytes.remove_prefix(std::min<size_t>(size, bytes.size()));
        break;
      }
      case 5:
        value = std::to_string(Take<float>(&bytes));
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
    fields.emplace(static_cast<int>(key >> 3), value);
  }
  return fields;
}

std::vector<std::string> Records(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> records;
  for (std::string_view rest = all; !rest.empty();) {
    std::string_view head = rest;
    const auto size = Take<uint64_t>(&head);
    records.emplace_back(rest.substr(12, size));
    const std::string again = TfRecord(records.back());
    EXPECT_EQ(rest.substr(0, again.size()), again);
    rest.remove_prefix(std::min(again.size(), rest.size()));
  }
  return records;
}

TEST(EventLogTest, ChecksumsAreThoseOfTfRecord) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);  // the check value of CRC-32C
  EXPECT_EQ(Crc32c(""), 0u);
  const std::string record = TfRecord("abc");
  EXPECT_EQ(record.size(), 8u + 4 + 3 + 4);
  std::string_view tail = std::string_view(record).substr(15);
  // crc32c("abc") is 0x364b3fb7 (RFC 3720 polynomial); the mask rotates it and adds a constant.
  EXPECT_EQ(Take<uint32_t>(&tail), ((0x364b3fb7u >> 15) | (0x364b3fb7u << 17)) + 0xa282ead8u);
}

TEST(EventLogTest, EachStepIsASummaryOfItsNumbers) {
  const TemporaryDirectory directory;
  std::vector<std::string> warnings;
  EventLog log(directory.path(), 4, [&](const std::string& w) { warnings.push_back(w); });
  log.Write({.step = 5, .losses = {.main = 2.5}, .tokens = 10, .figures = {{"balancedness", 0.5}}});
  const std::vector<std::string> records = Records(log.path());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(Fields(records[0]).find(3)->second, "brain.Event:2");
  // TensorBoard drops steps of earlier files from here on.
  EXPECT_EQ(Fields(records[1]).find(2)->second, "5");
  EXPECT_EQ(Fields(Fields(records[1]).find(7)->second).find(1)->second, "1");
  const auto step = Fields(records[2]);
  EXPECT_EQ(step.find(2)->second, "5");
  std::map<std::string, std::string> scalars;
  const auto summary = Fields(step.find(5)->second);
  for (const auto& [number, value] : summary) {
    const auto fields = Fields(value);
    scalars[fields.find(1)->second] = fields.find(2)->second;
  }
  EXPECT_EQ(scalars.at("loss"), "2.500000");
  EXPECT_EQ(scalars.at("tokens"), "10.000000");
  EXPECT_EQ(scalars.at("balancedness"), "0.500000");
  EXPECT_FALSE(scalars.contains("step"));
  EXPECT_TRUE(warnings.empty());
}

// A reader of the file stops at a part of a record.
TEST(EventLogTest, ARecordOfAFullDiskLeavesNoPart) {
  const TemporaryDirectory directory;
  std::vector<std::string> warnings;
  EventLog log(directory.path(), 0, [&](const std::string& w) { warnings.push_back(w); });
  log.Write({.step = 1});
  const auto size = fs::file_size(log.path());
  // A limit on the file size emulates a full disk.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = size + 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  log.Write({.step = 2});
  const auto size_when_full = fs::file_size(log.path());
  log.Write({.step = 3});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(size_when_full, size);
  log.Write({.step = 4});
  const std::vector<std::string> records = Records(log.path());
  ASSERT_EQ(records.size(), 4u);  // version, start, steps 1 and 4
  EXPECT_EQ(Fields(records[3]).find(2)->second, "4");
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(EventLogTest, AFileThatCannotBeWrittenIsReportedOnce) {
  std::vector<std::string> warnings;
  EventLog log("/proc/none", 0, [&](const std::string& w) { warnings.push_back(w); });
  log.Write({.step = 1});
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace switchyard::train
