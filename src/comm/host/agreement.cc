#include "comm/host/agreement.h"

#include <cstdint>

#include "core/error.h"
#include "core/wire.h"

namespace switchyard {
namespace {

enum class Answer : uint8_t { kJob, kRefusal, kEnd };

std::string EncodeAnswer(Answer answer, std::string_view text) {
  WireWriter writer;
  writer.Put(answer);
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

void CheckSame(const Statement& reference, const Statement& theirs,
               const std::string& reference_name, const std::string& who) {
  const auto other_build = [&] {
    return Invalid("{} runs another build than {}", who, reference_name);
  };
  if (reference.size() != theirs.size()) throw other_build();
  for (size_t i = 0; i < reference.size(); ++i) {
    const auto& [name, value] = reference[i];
    if (theirs[i].first != name) throw other_build();
    if (theirs[i].second != value)
      throw Invalid("{} is {} on {}, but {} on {}: both need the same value", name, value,
                    reference_name, theirs[i].second, who);
  }
}

std::string EncodeJob(std::string_view job) { return EncodeAnswer(Answer::kJob, job); }
std::string EncodeRefusal(std::string_view why) { return EncodeAnswer(Answer::kRefusal, why); }
std::string EncodeEnd(std::string_view why) { return EncodeAnswer(Answer::kEnd, why); }

std::string DecideJob(const std::vector<std::string>& statements, std::string_view job) {
  const Statement node0 = DecodeStatement(statements[0]);
  try {
    for (size_t rank = 1; rank < statements.size(); ++rank) {
      CheckSame(node0, DecodeStatement(statements[rank]), "node 0", fmt::format("rank {}", rank));
    }
  } catch (const Error& error) {
    return EncodeRefusal(error.what());
  }
  return EncodeJob(job);
}

std::string DecodeJob(std::string_view answer) {
  WireReader reader(answer);
  const auto kind = reader.Get<Answer>();
  std::string text = reader.GetString();
  if (kind == Answer::kEnd)
    throw Error(ErrorKind::kUnavailable, "node 0 has ended the engine: " + text);
  if (kind != Answer::kJob) throw Invalid("{}", text);
  return text;
}

}  // namespace switchyard
