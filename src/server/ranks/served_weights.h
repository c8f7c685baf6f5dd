// The weight files of a node: checks before the ranks start, and changes while they are served.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/regular_file.h"
#include "server/args/args.h"
#include "server/ranks/rank_host.h"

namespace switchyard {

// Checks the checkpoint's headers, and with --verify-weights its SHA-256 sums. Returns the weight
// files, or an empty list with --load-format dummy. Returns nullopt if `interrupted` returns true;
// several threads call `interrupted` concurrently. Throws Error that names the file.
std::optional<std::vector<FileStamp>> CheckWeights(const ServerArgs& args,
                                                   const std::function<bool()>& interrupted);

// Returns "; FILE has changed: ..." for each changed file; "" if no file has changed.
std::string DescribeChanges(const std::vector<FileStamp>& files);

// Returns a callback that appends the changes of `files` to the reason and passes it to `on_exit`.
// The reason alone may not name the file: a rank that reads past the end of a truncated file is
// killed by SIGBUS.
RankHost::OnExit WithChangedFiles(std::vector<FileStamp> files, RankHost::OnExit on_exit);

}  // namespace switchyard
