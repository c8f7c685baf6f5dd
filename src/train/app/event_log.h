// TensorBoard event files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "train/run/trainer.h"

namespace switchyard::train {

// CRC-32C (Castagnoli), as TFRecord files use it.
uint32_t Crc32c(std::string_view bytes);

// One record of a TFRecord file: length, masked CRC of the length, data, masked CRC of the data.
std::string TfRecord(std::string_view data);

// Writes the numbers of each step as scalars: the fields of log.jsonl, each a tag. The file is
// DIR/events.out.tfevents.TIME.HOST.PID, a TFRecord file of tensorflow.Event messages. Each run and
// each resumption writes a file of its own. Its second record tells TensorBoard to drop the later
// steps of earlier files. Used by one thread.
class EventLog {
 public:
  // `last_step`: the step that the run resumes from; 0: none. If a record cannot be written, it is
  // left out, and the next one is tried again; the file has no part of a record. `warn` is called
  // for the first such record.
  EventLog(const std::filesystem::path& dir, int64_t last_step,
           std::function<void(const std::string&)> warn);

  void Write(const StepReport& report);
  const std::filesystem::path& path() const { return path_; }

 private:
  void Append(std::string_view event);
  bool Open();

  std::filesystem::path path_;
  uintmax_t size_ = 0;  // of the records in the file
  std::function<void(const std::string&)> warn_;
  bool warned_ = false;
  std::ofstream out_;
};

}  // namespace switchyard::train
