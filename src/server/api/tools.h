// The tools of a chat request, and which of them the model has to call.
#pragma once

#include <memory>
#include <string>

#include "server/api/json_body.h"
#include "text/output/offered_tools.h"

namespace switchyard {

struct ToolChoice {
  enum class Kind {
    kAuto,      // the model decides
    kNone,      // no calls; the template gets no tools
    kRequired,  // at least one call
    kNamed,     // a call of `name`
  };
  Kind kind = Kind::kAuto;
  std::string name;

  bool IsForced() const { return kind == Kind::kRequired || kind == Kind::kNamed; }
};

// Parses `tool_choice`: "auto", "none", "required", or {"type": "function", "function": {"name"}}.
// Throws RequestError for other values.
ToolChoice ParseToolChoice(const Fields& f);

// Throws RequestError for a choice that the tools of the request do not allow: kRequired without
// tools, or kNamed with a name that no tool has.
void CheckToolChoice(const Fields& f);

// Throws RequestError that names the field unless `tools` is a list of functions. A function has a
// name of 1 to 256 bytes without white space and quotes, and may have a description, parameters (an
// object) and strict.
void CheckTools(const Fields& f);

// Whether a function of the checked `tools` has `strict`: true.
bool HasStrictTools(const Fields& f);

// Returns the tools that a request offers to the model. nullptr if it has no tools, or if
// tool_choice is "none".
std::shared_ptr<const OfferedTools> ParseOfferedTools(const Fields& f);

}  // namespace switchyard
