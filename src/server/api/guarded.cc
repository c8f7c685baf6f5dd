#include "server/api/guarded.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/json_body.h"
#include "server/http/error_body.h"

namespace switchyard {
namespace {

bool IsPartOfPath(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || std::isalnum(byte) != 0 ||
         std::string_view("_-./").find(c) != std::string_view::npos;
}

// Whether a path ends before text[at]. A period at text[at] may be the end of the sentence.
bool PathEnds(const std::string& text, size_t at) {
  if (at < text.size() && text[at] == '.') ++at;
  return at >= text.size() || !IsPartOfPath(text[at]);
}

// Replaces `directory` by "the model" where it is a whole path, and removes it where it is the
// beginning of a path.
void HideDirectory(const std::string& directory, std::string& text) {
  for (size_t at = text.find(directory); at != std::string::npos; at = text.find(directory, at)) {
    const size_t end = at + directory.size();
    const bool whole = PathEnds(text, end);
    if ((at > 0 && IsPartOfPath(text[at - 1])) || (!whole && text[end] != '/')) {
      at = end;
      continue;
    }
    const std::string_view with = whole ? "the model" : "";
    text.replace(at, directory.size() + (whole ? 0 : 1), with);
    at += with.size();
  }
}

}  // namespace

std::string RedactPaths(const Service& service, std::string message) {
  std::vector<std::string> directories;
  const auto add = [&](const std::filesystem::path& path) {
    if (!path.empty()) directories.push_back(path.lexically_normal().string());
    if (!path.empty()) directories.push_back(path.string());
  };
  add(service.model.path);
  add(service.args.tokenizer_path);
  if (!service.args.chat_template.empty())
    add(std::filesystem::path(service.args.chat_template).parent_path());
  // Longest first, because one of these directories may contain another one.
  std::sort(directories.begin(), directories.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  for (std::string& directory : directories) {
    while (directory.ends_with('/')) directory.pop_back();
    if (directory.find('/') == std::string::npos)
      continue;  // a name without '/' may be an ordinary word
    HideDirectory(directory, message);
  }
  return http::HidePaths(message);
}

http::Handler Guarded(const Service& service, http::Handler handler) {
  return [&service, handler = std::move(handler)](std::shared_ptr<const http::Request> request,
                                                  const http::Responder& responder) {
    try {
      handler(std::move(request), responder);
    } catch (const RequestError& e) {
      responder.SendError(http::StatusOf(e.kind()), RedactPaths(service, e.what()), e.code(),
                          e.param());
    } catch (const ParameterError& e) {
      responder.SendError(400, RedactPaths(service, e.what()), {}, e.parameter);
    } catch (const Error& e) {
      responder.NoteHint(e.hint());
      responder.SendError(http::StatusOf(e.kind()), RedactPaths(service, e.what()));
    }
  };
}

}  // namespace switchyard
