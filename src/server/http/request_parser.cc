#include "server/http/request_parser.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace switchyard::http {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-decodes `text`. In a query only, '+' means a space.
std::optional<std::string> Decode(std::string_view text, bool in_query) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (text.size() - i < 3) return std::nullopt;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += in_query && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace

std::optional<RequestTarget> ParseTarget(std::string_view target) {
  if (target == "*") return RequestTarget{.path = "*", .query = {}};
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t path = target.find_first_of("/?", target.find("://") + 3);
    target.remove_prefix(path == std::string_view::npos ? target.size() : path);
  } else if (!target.starts_with('/')) {
    return std::nullopt;
  }
  target = target.substr(0, target.find('#'));

  const size_t question = target.find('?');
  std::optional<std::string> path = Decode(target.substr(0, question), false);
  if (!path) return std::nullopt;
  RequestTarget parsed{.path = path->empty() ? "/" : std::move(*path), .query = {}};

  std::string_view rest = question == std::string_view::npos ? "" : target.substr(question + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    std::optional<std::string> name = Decode(pair.substr(0, equals), true);
    std::optional<std::string> value =
        Decode(equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
    if (!name || !value) return std::nullopt;
    parsed.query[*name] = std::move(*value);
  }
  return parsed;
}

namespace {

// Longer numbers are rejected; this limit also prevents overflow.
constexpr size_t kMaxLengthDigits = 18;

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

bool IsDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Joins all values of a field into one list (RFC 9110, section 5.3). No value if it is absent.
std::optional<std::string> Joined(const Headers& fields, std::string_view name) {
  std::optional<std::string> joined;
  for (const auto& [key, value] : fields) {
    if (!Same(key, name)) continue;
    joined = joined ? *joined + "," + value : value;
  }
  return joined;
}

std::vector<std::string_view> Split(std::string_view list) {
  std::vector<std::string_view> items;
  while (true) {
    const size_t comma = list.find(',');
    std::string_view item = list.substr(0, comma);
    while (!item.empty() && (item.front() == ' ' || item.front() == '\t')) item.remove_prefix(1);
    while (!item.empty() && (item.back() == ' ' || item.back() == '\t')) item.remove_suffix(1);
    items.push_back(item);
    if (comma == std::string_view::npos) return items;
    list.remove_prefix(comma + 1);
  }
}

bool HasItem(const std::optional<std::string>& list, std::string_view item) {
  if (!list) return false;
  const std::vector<std::string_view> items = Split(*list);
  return std::any_of(items.begin(), items.end(), [&](auto each) { return Same(each, item); });
}

// Whether `host` is a name, an IPv4 address or an IPv6 address in brackets, with or without a port
// (RFC 3986, section 3.2.2). An empty host is valid too.
bool IsHost(std::string_view host) {
  if (host.empty()) return true;
  constexpr std::string_view kMarks = "-._~%!$&'()*+,;=";
  size_t end = 0;
  if (host.front() == '[') {
    end = host.find(']');
    if (end == std::string_view::npos || end < 3) return false;
    const bool good = std::all_of(host.begin() + 1, host.begin() + end, [](char c) {
      return isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.';
    });
    if (!good) return false;
    ++end;
  } else {
    while (end < host.size() && (isalnum(static_cast<unsigned char>(host[end])) ||
                                 kMarks.find(host[end]) != std::string_view::npos)) {
      ++end;
    }
    if (end == 0) return false;
  }
  if (end == host.size()) return true;
  const std::string_view port = host.substr(end + 1);
  return host[end] == ':' && (port.empty() || (IsDigits(port) && port.size() <= 5));
}

}  // namespace

size_t RequestParser::Take(std::string_view input) {
  size_t at = 0;
  while (at < input.size() && !done_ && !refusal_) {
    size_t end = input.find('\n', at);
    size_t count = (end == std::string_view::npos ? input.size() : end + 1) - at;
    // Checks the bytes up to the limit first, so that the refusal does not depend on how the input
    // is split.
    const size_t room = limits_.head_bytes - taken_;
    const bool too_large = count > room;
    if (too_large) {
      end = std::string_view::npos;
      count = room;
    }
    taken_ += count;
    line_ += input.substr(at, count);
    at += count;
    if (end == std::string_view::npos) {
      // Only the last character may be a control: the CR of an incomplete line end.
      const size_t before = line_.size() - count;
      const size_t from = before == 0 ? 0 : before - 1;
      if (!line_.empty() &&
          HasControls(std::string_view(line_).substr(from, line_.size() - 1 - from))) {
        Refuse(400, "The header has a control character");
      } else if (too_large) {
        // The partial request line is enough to recognize HEAD, whose response has no body.
        if (!has_request_line_) head_.method = line_.substr(0, line_.find(' '));
        Refuse(431, fmt::format("The request header is larger than {} bytes", limits_.head_bytes),
               "header_too_large");
      }
      break;
    }
    if (line_.size() < 2 || line_[line_.size() - 2] != '\r') {
      Refuse(400, "A line of the header does not end in CR LF");
      break;
    }
    TakeLine(std::string_view(line_).substr(0, line_.size() - 2));
    line_.clear();
  }
  return at;
}

void RequestParser::TakeLine(std::string_view line) {
  if (!has_request_line_) {
    // One empty line before a request is ignored (RFC 9112, section 2.2).
    if (line.empty() && taken_ == 2) return;
    return TakeRequestLine(line);
  }
  if (line.empty()) return Finish();
  TakeField(line);
}

void RequestParser::TakeRequestLine(std::string_view line) {
  has_request_line_ = true;
  const size_t first = line.find(' ');
  const size_t second = line.find(' ', first == std::string_view::npos ? first : first + 1);
  if (second == std::string_view::npos || line.find(' ', second + 1) != std::string_view::npos ||
      HasControls(line) || line.find('\t') != std::string_view::npos) {
    return Refuse(400, "The request line is malformed: want METHOD TARGET HTTP/1.1");
  }
  head_.method = line.substr(0, first);
  head_.target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!IsToken(head_.method) || head_.target.empty()) {
    return Refuse(400, "The request line is malformed: want METHOD TARGET HTTP/1.1");
  }
  const bool is_version = version.size() == 8 && version.starts_with("HTTP/") &&
                          IsDigits(version.substr(5, 1)) && version[6] == '.' &&
                          IsDigits(version.substr(7, 1));
  if (!is_version) return Refuse(400, "The request line does not end in HTTP/1.1");
  if (version[5] != '1') {
    return Refuse(505, "This server supports only HTTP/1.0 and HTTP/1.1", "http_version");
  }
  head_.minor_version = version[7] == '0' ? 0 : 1;
}

void RequestParser::TakeField(std::string_view line) {
  if (line.front() == ' ' || line.front() == '\t') {
    return Refuse(400, "A header field is folded over several lines");
  }
  const std::optional<FieldLine> field = ParseFieldLine(line);
  if (!field) return Refuse(400, "A header field is malformed: want NAME: VALUE");
  if (head_.fields.size() >= limits_.fields) {
    return Refuse(431, fmt::format("The request has more than {} header fields", limits_.fields),
                  "header_too_large");
  }
  head_.fields.emplace_back(field->name, field->value);
}

void RequestParser::Finish() {
  done_ = true;
  ReadConnection();
  CheckHost();
  if (!refusal_) ReadFraming();
  if (!refusal_) CheckExpectAndCoding();
}

void RequestParser::CheckHost() {
  int count = 0;
  for (const auto& [key, value] : head_.fields) {
    if (!Same(key, "Host")) continue;
    ++count;
    head_.host = value;
  }
  if (count > 1) return Refuse(400, "The request has more than one Host");
  if (count == 0 && head_.minor_version >= 1) return Refuse(400, "The request has no Host");
  if (!IsHost(head_.host)) Refuse(400, "Host is malformed: want NAME or NAME:PORT");
}

void RequestParser::ReadFraming() {
  const std::optional<std::string> coding = Joined(head_.fields, "Transfer-Encoding");
  const std::optional<std::string> length = Joined(head_.fields, "Content-Length");
  if (coding && length) {
    return Refuse(400, "The request has both Content-Length and Transfer-Encoding");
  }
  if (coding) return ReadTransferCoding(*coding);
  if (!length) return;
  if (!IsDigits(*length) || length->size() > kMaxLengthDigits) {
    return Refuse(400, "Content-Length is not one decimal number");
  }
  head_.length = std::stoull(*length);
}

void RequestParser::ReadTransferCoding(const std::string& coding) {
  if (head_.minor_version == 0) {
    return Refuse(400, "Transfer-Encoding is not part of HTTP/1.0");
  }
  const std::vector<std::string_view> items = Split(coding);
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string_view name = items[i].substr(0, items[i].find(';'));
    const bool is_chunked = Same(items[i], "chunked");
    if (!IsToken(name) || (is_chunked && i + 1 < items.size())) {
      return Refuse(400, "Transfer-Encoding is malformed: want \"chunked\"");
    }
  }
  if (items.size() > 1 || !Same(items[0], "chunked")) {
    return Refuse(501, "Transfer-Encoding may only be \"chunked\"", "transfer_encoding");
  }
  head_.chunked = true;
}

void RequestParser::ReadConnection() {
  const std::optional<std::string> connection = Joined(head_.fields, "Connection");
  head_.keep_alive = !HasItem(connection, "close") &&
                     (head_.minor_version >= 1 || HasItem(connection, "keep-alive"));
}

void RequestParser::CheckExpectAndCoding() {
  const std::optional<std::string> expect = Joined(head_.fields, "Expect");
  if (expect && head_.minor_version >= 1) {
    if (!Same(*expect, "100-continue")) {
      return Refuse(417, "Expect may only be \"100-continue\"", "expectation_failed");
    }
    head_.expects_continue = head_.has_body();
  }
  const std::optional<std::string> coding = Joined(head_.fields, "Content-Encoding");
  if (coding && !coding->empty() && !Same(*coding, "identity")) {
    Refuse(415,
           fmt::format("Content-Encoding {} is not supported: send the body uncompressed", *coding),
           "unsupported_content_encoding");
  }
}

void RequestParser::Refuse(int status, std::string what, std::string code) {
  refusal_ = {.status = status, .message = std::move(what), .code = std::move(code)};
}

}  // namespace switchyard::http
