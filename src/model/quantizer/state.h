// The state of an unfinished run in its output directory.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "model/quantizer/shard_writer.h"

namespace switchyard {

// quantize_state.json: the files that are finished, with their sums and errors. One thread at a
// time.
class QuantizeState {
 public:
  static constexpr const char* kFile = "quantize_state.json";

  // Locks the directory against other processes until destruction, and reads its state. Creates the
  // directory and the state if there is none. `key` identifies checkpoint and settings. Throws
  // QuantizeCheckpoint's errors about `dir`.
  QuantizeState(std::filesystem::path dir, std::string key);
  ~QuantizeState();
  QuantizeState(const QuantizeState&) = delete;
  QuantizeState& operator=(const QuantizeState&) = delete;

  // The errors of a file, if it is listed and has the listed content; else nullptr.
  const PackingReport* Finished(const std::string& file);
  void Add(const std::string& file, WrittenShard shard);  // adds the file and writes the state
  void Remove();                                          // deletes the state

 private:
  void Read(const std::string& text);
  void Write() const;

  const std::filesystem::path dir_;
  const std::string key_;
  int lock_ = -1;
  std::map<std::string, WrittenShard> shards_;
};

}  // namespace switchyard
