// The secret that all nodes of an engine share.
#pragma once

#include <string>

namespace switchyard {

// The contents of --dist-secret-file, without trailing newlines. Error kNotFound if the file does
// not exist. Error kInvalid if it is not a regular file, cannot be read, or has fewer than 16 bytes
// or more than 64 KiB. Logs a warning if every user of the host has access to it.
std::string ReadSecretFile(const std::string& path);

}  // namespace switchyard
