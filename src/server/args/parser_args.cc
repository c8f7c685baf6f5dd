#include "server/args/parser_args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "text/output/output_formats.h"

namespace switchyard {

void AddParserFlags(CommandLine& app, ServerArgs& args, const char* group) {
  app.Flag(
      "--tool-call-parser", args.tool_call_parser, group,
      "Format of tool calls in outputs: auto (by the chat template), none (outputs stay text), "
      "or one of " +
          CallFormatNames());
  app.Flag("--reasoning-parser", args.reasoning_parser, group,
           "Format of reasoning in outputs: auto (by the chat template), none (reasoning stays in "
           "the content), or one of " +
               ReasoningFormatNames());
}

void CheckParserFlags(const ServerArgs& args) {
  const auto is_known = [](const std::string& name, const void* format) {
    return name == "auto" || name == "none" || format != nullptr;
  };
  if (!is_known(args.tool_call_parser, FindCallFormat(args.tool_call_parser)))
    throw Invalid("--tool-call-parser {}: there is no such parser, want auto, none, {}",
                  args.tool_call_parser, CallFormatNames());
  if (!is_known(args.reasoning_parser, FindReasoningFormat(args.reasoning_parser)))
    throw Invalid("--reasoning-parser {}: there is no such parser, want auto, none, {}",
                  args.reasoning_parser, ReasoningFormatNames());
}

}  // namespace switchyard
