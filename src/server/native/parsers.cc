#include <memory>
#include <string>
#include <vector>

#include "server/api/chat_fields.h"
#include "server/api/guarded.h"
#include "server/api/json_body.h"
#include "server/http/error_body.h"
#include "server/native/native.h"
#include "text/output/output_parser.h"

namespace switchyard::native {
namespace {

using EventKind = OutputEvent::Kind;
using RequestPtr = std::shared_ptr<const http::Request>;

std::string RequiredText(const Fields& f) {
  if (!f.Has("text")) throw InvalidField("text", "text is missing");
  return f.String("text", "");
}

// Returns the format that is named in field `key`. If the field is absent, returns `own`, the
// server's format.
template <typename Format>
const Format& FormatOf(const Fields& f, const char* key, const Format* own,
                       const Format* (*find)(std::string_view), const std::string& names) {
  const Format* format = f.Has(key) ? find(f.String(key, "")) : own;
  if (format) return *format;
  if (!f.Has(key))
    throw InvalidField(key, "{} is missing, and the server has no parser: want one of {}", key,
                       names);
  throw InvalidField(key, "{} is {}, want one of {}", key, Dump(*f.Find(key)).substr(0, 80), names);
}

std::vector<OutputEvent> Parse(const OutputFormat& format,
                               std::shared_ptr<const OfferedTools> tools, std::string_view text) {
  OutputParser parser(format, std::move(tools), {});
  parser.Push(text);
  parser.Finish(/*complete=*/true);
  return parser.Take();
}

void HandleParseFunctionCall(const Service& service, const http::Request& request,
                             const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckFields(f, RequestKind::kParseFunctionCall, service.unknown_fields);
  const std::string text = RequiredText(f);
  CheckTools(f);
  const CallFormat& format = FormatOf(f, "tool_call_parser", service.model.output_format.calls,
                                      FindCallFormat, CallFormatNames());
  std::string content;
  Json calls = Json::array();
  for (const OutputEvent& event : Parse({&format, nullptr}, ParseOfferedTools(f), text)) {
    if (event.kind == EventKind::kReasoning || event.kind == EventKind::kContent)
      content += event.text;
    if (event.kind == EventKind::kCallBegin)
      calls.push_back({{"tool_index", event.call}, {"name", event.text}, {"parameters", ""}});
    if (event.kind == EventKind::kArguments)
      calls.back()["parameters"].get_ref<std::string&>() += event.text;
  }
  responder.Send(200, http::kJson,
                 Dump({{"normal_text", std::move(content)}, {"calls", std::move(calls)}}));
}

void HandleSeparateReasoning(const Service& service, const http::Request& request,
                             const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckFields(f, RequestKind::kSeparateReasoning, service.unknown_fields);
  const std::string text = RequiredText(f);
  const ReasoningFormat& format =
      FormatOf(f, "reasoning_parser", service.model.output_format.reasoning, FindReasoningFormat,
               ReasoningFormatNames());
  std::string reasoning, content;
  Json blocks = Json::array();
  for (const OutputEvent& event : Parse({nullptr, &format}, nullptr, text)) {
    const bool reasons = event.kind == EventKind::kReasoning;
    (reasons ? reasoning : content) += event.text;
    blocks.push_back({{"type", reasons ? "reasoning" : "text"}, {"text", event.text}});
  }
  Json answer = {{"reasoning_text", std::move(reasoning)}, {"text", std::move(content)}};
  if (f.Bool("return_blocks", false)) answer["blocks"] = std::move(blocks);
  responder.Send(200, http::kJson, Dump(answer));
}

}  // namespace

void RegisterParsers(http::Server& server, const Service& service) {
  const auto route = [&](const char* path, auto handle) {
    server.Route(
        "POST", path,
        Guarded(service, [&service, handle](const RequestPtr& r, const http::Responder& out) {
          handle(service, *r, out);
        }));
  };
  route("/parse_function_call", HandleParseFunctionCall);
  route("/separate_reasoning", HandleSeparateReasoning);
}

}  // namespace switchyard::native
