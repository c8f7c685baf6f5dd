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
// Error kInvalid names the first entry in which `who`, e.g. "node 1 (10.0.0.2)", differs from
// node 0.
void CheckSame(const Statement& node0, const Statement& theirs, const std::string& who);

// Node 0's answer to all nodes: the job, or the reason for a refusal.
std::string EncodeJob(std::string_view job);
std::string EncodeRefusal(std::string_view why);
std::string DecodeJob(std::string_view answer);  // the job; throws a refusal as Error kInvalid

}  // namespace switchyard
