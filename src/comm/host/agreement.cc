#include "comm/host/agreement.h"

#include "core/error.h"
#include "core/wire.h"

namespace switchyard {
namespace {

std::string EncodeAnswer(bool is_job, std::string_view text) {
  WireWriter writer;
  writer.Put(is_job);
  writer.Put(text);
  return writer.Take();
}

}  // namespace

std::string EncodeStatement(const Statement& statement) {
  WireWriter writer;
  writer.Put(statement.size());
  for (const auto& [name, value] : statement) {
    writer.Put(name);
    writer.Put(value);
  }
  return writer.Take();
}

Statement DecodeStatement(std::string_view bytes) {
  WireReader reader(bytes);
  Statement statement;
  const auto entries = reader.Get<size_t>();
  for (size_t i = 0; i < entries; ++i) {
    std::string name = reader.GetString();
    statement.emplace_back(std::move(name), reader.GetString());
  }
  return statement;
}

void CheckSame(const Statement& node0, const Statement& theirs, const std::string& who) {
  if (node0.size() != theirs.size()) throw Invalid("{} runs another build than node 0", who);
  for (size_t i = 0; i < node0.size(); ++i) {
    const auto& [name, value] = node0[i];
    if (theirs[i].first != name) throw Invalid("{} runs another build than node 0", who);
    if (theirs[i].second != value) {
      throw Invalid("{} is {} on node 0, but {} on {}: all nodes need the same value", name, value,
                    theirs[i].second, who);
    }
  }
}

std::string EncodeJob(std::string_view job) { return EncodeAnswer(true, job); }
std::string EncodeRefusal(std::string_view why) { return EncodeAnswer(false, why); }

std::string DecodeJob(std::string_view answer) {
  WireReader reader(answer);
  const bool is_job = reader.Get<bool>();
  std::string text = reader.GetString();
  if (!is_job) throw Invalid("{}", text);
  return text;
}

}  // namespace switchyard
