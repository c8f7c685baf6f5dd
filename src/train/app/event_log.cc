#include "train/app/event_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <system_error>
#include <utility>

#include "train/app/step_log.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

// Protocol Buffers, the three wire types of the messages below
// (https://protobuf.dev/programming-guides/encoding).
enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void PutVarint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *out += static_cast<char>(value | 0x80);
  *out += static_cast<char>(value);
}

void PutKey(std::string* out, int field, WireType type) {
  PutVarint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint8_t>(type));
}

template <typename T>
void PutLittleEndian(std::string* out, T bits) {
  for (size_t i = 0; i < sizeof bits; ++i) *out += static_cast<char>(bits >> (8 * i) & 0xff);
}

void PutInteger(std::string* out, int field, int64_t value) {
  PutKey(out, field, WireType::kVarint);
  PutVarint(out, static_cast<uint64_t>(value));
}

void PutDouble(std::string* out, int field, double value) {
  PutKey(out, field, WireType::kFixed64);
  PutLittleEndian(out, std::bit_cast<uint64_t>(value));
}

void PutFloat(std::string* out, int field, float value) {
  PutKey(out, field, WireType::kFixed32);
  PutLittleEndian(out, std::bit_cast<uint32_t>(value));
}

void PutBytes(std::string* out, int field, std::string_view bytes) {
  PutKey(out, field, WireType::kBytes);
  PutVarint(out, bytes.size());
  *out += bytes;
}

// Field numbers of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
namespace field {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // Event
constexpr int kValue = 1;                                                                 // Summary
constexpr int kTag = 1, kSimpleValue = 2;  // Summary.Value
constexpr int kStatus = 1;                 // SessionLog
}  // namespace field
constexpr int64_t kSessionStart = 1;  // SessionLog.START

std::string EventOf(int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  PutDouble(&event, field::kWallTime, std::chrono::duration<double>(now).count());
  PutInteger(&event, field::kStep, step);
  return event;
}

uint32_t Masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

std::string TfRecord(std::string_view data) {
  std::string record;
  PutLittleEndian(&record, static_cast<uint64_t>(data.size()));
  PutLittleEndian(&record, Masked(Crc32c(record)));
  record += data;
  PutLittleEndian(&record, Masked(Crc32c(data)));
  return record;
}

EventLog::EventLog(const fs::path& dir, int64_t last_step,
                   std::function<void(const std::string&)> warn)
    : warn_(std::move(warn)) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  // TensorBoard reads the files of a directory in the order of their names.
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  path_ = dir / fmt::format("events.out.tfevents.{:010}.{}.{}",
                            std::chrono::duration_cast<std::chrono::seconds>(time).count(),
                            host.data(), getpid());
  std::error_code failed;  // the write below reports it
  fs::create_directories(dir, failed);
  const uintmax_t present = fs::file_size(path_, failed);
  if (!failed) size_ = present;
  std::string version = EventOf(0);
  PutBytes(&version, field::kFileVersion, "brain.Event:2");
  Append(version);
  std::string start = EventOf(last_step + 1), session;
  PutInteger(&session, field::kStatus, kSessionStart);
  PutBytes(&start, field::kSessionLog, session);
  Append(start);
}

// Opens the file for further records, and first removes what a failed write has left of one.
bool EventLog::Open() {
  std::error_code failed;
  const bool found = fs::exists(path_, failed);
  if (!found && !failed) size_ = 0;
  if (found && fs::file_size(path_, failed) > size_ && !failed)
    fs::resize_file(path_, size_, failed);
  if (!failed) out_.open(path_, std::ios::binary | std::ios::app);
  return out_.is_open();
}

void EventLog::Append(std::string_view event) {
  const std::string record = TfRecord(event);
  if ((out_.is_open() || Open()) && out_ << record << std::flush) {
    size_ += record.size();
    return;
  }
  // The stream may still hold a part of the record, which it would write again. Open removes it
  // from the file: now, since a reader stops at it, or at the next record if that fails now.
  out_.close();
  out_.clear();
  Open();
  if (!std::exchange(warned_, true) && warn_)
    warn_(path_.string() + ": cannot be written; TensorBoard will lack steps");
}

void EventLog::Write(const StepReport& report) {
  std::string summary;
  const auto fields = ToJson(report);
  for (const auto& [name, number] : fields.items()) {
    if (name == "step" || !number.is_number()) continue;
    std::string value;
    PutBytes(&value, field::kTag, name);
    PutFloat(&value, field::kSimpleValue, number.get<float>());
    PutBytes(&summary, field::kValue, value);
  }
  std::string event = EventOf(report.step);
  PutBytes(&event, field::kSummary, summary);
  Append(event);
}

}  // namespace switchyard::train
