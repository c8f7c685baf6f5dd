#include "server/api/guarded.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "server/api/request_error.h"
#include "server/http/error_body.h"

namespace switchyard {
namespace {

void Replace(const std::string& what, const std::string& with, std::string& text) {
  if (what.empty()) return;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
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
  // Longest first, because one directory may contain another.
  std::sort(directories.begin(), directories.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  for (std::string& directory : directories) {
    while (directory.ends_with('/')) directory.pop_back();
    if (directory.find('/') == std::string::npos)
      continue;  // a name without '/' may be an ordinary word
    Replace(directory + "/", "", message);
    Replace(directory, "the model", message);
  }
  return message;
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
      responder.SendError(http::StatusOf(e.kind()), RedactPaths(service, e.what()));
    }
  };
}

}  // namespace switchyard
