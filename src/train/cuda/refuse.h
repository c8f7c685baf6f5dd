// Errors of the launchers. Device sources cannot use fmt, whose checks of format strings nvcc
// rejects.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace switchyard::train::gpu {

// Throws Error kInvalid with `message`, in which each "{}" is replaced by the next number.
[[noreturn]] void Refuse(std::string message, std::initializer_list<int64_t> numbers);

}  // namespace switchyard::train::gpu
