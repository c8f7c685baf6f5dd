// The files of the checkpoint that a node serves.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/regular_file.h"
#include "server/args/args.h"
#include "server/ranks/rank_host.h"

namespace switchyard {

// Checks the checkpoint's headers, and its sums with --verify-weights, before any rank starts.
// Returns its files, none with made-up weights; nullopt when `interrupted` becomes true, which any
// thread may ask. Error names the file.
std::optional<std::vector<FileStamp>> CheckWeights(const ServerArgs& args,
                                                   const std::function<bool()>& interrupted);

// `on_exit` with a reason that also names those of `files` that have changed since: a rank that
// reads past the end of a truncated file is killed by SIGBUS, which says nothing about files.
RankHost::OnExit NamingChangedFiles(std::vector<FileStamp> files, RankHost::OnExit on_exit);

}  // namespace switchyard
