// Removes the directories of this host from error messages.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace switchyard::http {

// First components of absolute paths: names of entries of "/".
using RootNames = std::set<std::string, std::less<>>;

// The names of the entries of "/" on this host, and the usual names on Linux, because the error of
// a rank may contain a path of another host. Names with which a route begins are left out.
RootNames ReadRootNames();

// Reduces each absolute path in `message` to its last component: "/models/x/config.json: bad"
// becomes "config.json: bad". A path begins with "/" and one of `roots`, after white space, a quote
// or an opening bracket, and has two components or more. So routes such as /v1/models, URLs and
// most texts of requests stay unchanged.
std::string HidePaths(std::string_view message, const RootNames& roots);
// HidePaths with the result of ReadRootNames, which is called only once.
std::string HidePaths(std::string_view message);

}  // namespace switchyard::http
