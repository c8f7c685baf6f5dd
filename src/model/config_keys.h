// Keys of config.json that no reader has read: those without effect on a forward pass, and those
// that would change it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.h"

namespace switchyard {

enum class KeyMark {
  kNoEffect,  // a setting of training or of other programs, or implied by other keys
  kRefused,   // changes the forward pass of some family; accepted with a value that changes nothing
  kUnknown,
};
KeyMark MarkOf(std::string_view key);
// The values of a refused key that change nothing, as JSON: {"false"}. Null is always one of them.
std::vector<std::string> NeutralValues(std::string_view key);

// Call when a family's reader has read its settings. Throws Error kInvalid if a refused key was not
// read and has a value that is not neutral. Checks the keys of `settings` and of the rotary
// settings in it. The error names the key. Returns the unread keys that are unknown.
std::vector<std::string> RefuseUnreadKeys(const ConfigReader& settings,
                                          std::string_view architecture);

}  // namespace switchyard
