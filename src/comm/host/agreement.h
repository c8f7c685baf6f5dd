// Consistency check between the nodes of one engine before they start.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// Flags and facts that must be equal on every node, as (name, value) in a fixed order.
using Statement = std::vector<std::pair<std::string, std::string>>;
std::string EncodeStatement(const Statement& statement);
Statement DecodeStatement(std::string_view bytes);
// Error kInvalid names the first entry that differs. `reference_name` and `who` name both sides in
// the error, e.g. "node 0" and "node 1 (10.0.0.2)".
void CheckSame(const Statement& reference, const Statement& theirs,
               const std::string& reference_name, const std::string& who);

// Node 0's answer to all nodes: the job, the reason for a refusal, or why the engine has ended.
std::string EncodeJob(std::string_view job);
std::string EncodeRefusal(std::string_view why);
std::string EncodeEnd(std::string_view why);
// The job. Throws a refusal as Error kInvalid, and the end of the engine as Error kUnavailable.
std::string DecodeJob(std::string_view answer);
// The answer of rank 0 to the encoded statements of all ranks, in order of rank: the job, or a
// refusal that names the first difference. For ranks of a launcher (MpiSession::Agree).
std::string DecideJob(const std::vector<std::string>& statements, std::string_view job);

}  // namespace switchyard
