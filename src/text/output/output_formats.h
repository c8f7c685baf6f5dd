// Names of the formats of tool calls and reasoning, and their detection from a chat template.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/call_parser.h"

namespace switchyard {

// A format of tool calls. Names are those of SGLang's --tool-call-parser.
struct CallFormat {
  // The form of the ids that the server generates for calls without an id from the model.
  enum class Ids {
    kOpenAi,     // call_ and 24 characters
    kNineChars,  // 9 letters and digits, which Mistral's templates require
  };
  std::string_view name;
  std::vector<std::string_view> aliases;  // further names, also vLLM's
  std::vector<std::string_view> markers;  // texts that may be special tokens of the tokenizer
  // The marker that begins calls and ends reasoning; empty if there is none.
  std::string_view begin;
  MakeCallParser make = nullptr;  // nullptr: harmony
  Ids ids = Ids::kOpenAi;

  bool IsHarmony() const { return make == nullptr; }
};

// A format of reasoning. Names are those of SGLang's --reasoning-parser.
struct ReasoningFormat {
  std::string_view name;
  std::vector<std::string_view> aliases;
  std::string_view open, close;  // the markers; empty for harmony
  // True: the output begins with reasoning even if neither prompt nor output has the opening
  // marker, unless the prompt ends with the closing marker.
  bool always = false;
  // Markers around the content after the reasoning, which are dropped; empty: none.
  std::string_view content_open = {}, content_close = {};
  // The beginning of a further message, which may precede content_open and calls, and is dropped: a
  // special token and text. Empty: none.
  std::string_view turn = {};

  bool IsHarmony() const { return open.empty(); }
};

std::span<const CallFormat> CallFormats();
std::span<const ReasoningFormat> ReasoningFormats();

// The format with the name or alias `name`; nullptr if there is none.
const CallFormat* FindCallFormat(std::string_view name);
const ReasoningFormat* FindReasoningFormat(std::string_view name);

// The format whose markers a chat template contains; nullptr if there is none.
const CallFormat* DetectCallFormat(std::string_view template_source);
const ReasoningFormat* DetectReasoningFormat(std::string_view template_source);

// All names and aliases for errors and help, separated by commas.
std::string CallFormatNames();
std::string ReasoningFormatNames();

// How the outputs of a model are parsed. A null member means that its part is not parsed.
struct OutputFormat {
  const CallFormat* calls = nullptr;
  const ReasoningFormat* reasoning = nullptr;

  // Markers that may be special tokens. Detokenization must not drop them.
  std::vector<std::string_view> Markers() const;
};

}  // namespace switchyard
