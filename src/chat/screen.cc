#include "chat/screen.h"

#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace switchyard::chat {

std::string WithoutControls(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) continue;
    // U+0080 to U+009F, which some terminals treat like escape sequences.
    if (c == 0xc2 && i + 1 < text.size() &&
        (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80) {
      ++i;
      continue;
    }
    kept += text[i];
  }
  return kept;
}

std::string Shortened(std::string_view text) {
  constexpr size_t kMost = 500;
  std::string kept = WithoutControls(text);
  while (!kept.empty() && std::isspace(static_cast<unsigned char>(kept.back()))) kept.pop_back();
  if (kept.size() <= kMost) return kept;
  size_t cut = kMost;
  while (cut > 0 && (static_cast<unsigned char>(kept[cut]) & 0xc0) == 0x80) --cut;  // UTF-8
  return kept.substr(0, cut) + " ...";
}

namespace {

constexpr std::string_view kDim = "\x1b[2m", kRed = "\x1b[31m", kPlain = "\x1b[0m";
constexpr std::string_view kClearLine = "\r\x1b[K";

std::string Styled(std::string_view style, std::string_view text) {
  std::string styled(style);
  return styled.append(text).append(kPlain);
}

}  // namespace

Screen::Properties Screen::OfThisProcess() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  Properties p;
  p.terminal = isatty(STDOUT_FILENO) != 0;
  p.colours = p.terminal && (no_colour == nullptr || *no_colour == '\0') && term != nullptr &&
              std::strcmp(term, "dumb") != 0;
  return p;
}

void Screen::Write(std::string_view bytes) {
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (!written || std::fflush(stdout) != 0)
    throw Error(ErrorKind::kPeer, fmt::format("standard output: {}", std::strerror(errno)));
}

void Screen::Text(std::string_view text) {
  if (terminal())
    Write(WithoutControls(text));
  else
    Write(text);
}

void Screen::Dimmed(std::string_view text) {
  if (!terminal()) {
    const std::string shown =
        isatty(STDERR_FILENO) != 0 ? WithoutControls(text) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stderr);
    return;
  }
  Write(colours() ? Styled(kDim, WithoutControls(text)) : WithoutControls(text));
}

void Screen::Note(std::string_view line) {
  if (terminal()) Dimmed(std::string(line) + "\n");
}

void Screen::Failure(std::string_view message) {
  std::string line = "error: " + WithoutControls(message);
  if (colours() && isatty(STDERR_FILENO) != 0) line = Styled(kRed, line);
  std::fputs((line + "\n").c_str(), stderr);  // which may be closed
}

void Screen::ReplaceLine(std::string_view line) {
  if (!terminal()) return;
  // Without colours the terminal may lack other sequences too, so spaces overwrite the rest.
  Write(colours() ? fmt::format("{}{}", kClearLine, line) : fmt::format("\r{:<40}\r{}", "", line));
}

void AnswerPrinter::Print(const AnswerPart& part) {
  if (!part.reasoning.empty()) PrintReasoning(part.reasoning);
  if (!part.content.empty()) PrintContent(part.content);
}

void AnswerPrinter::PrintReasoning(const std::string& text) {
  if (mode_ == ReasoningMode::kHide) return;
  if (!in_reasoning_) {
    in_reasoning_ = true;
    if (mode_ == ReasoningMode::kShow && !screen_.colours()) screen_.Dimmed("[reasoning]\n");
  }
  if (mode_ == ReasoningMode::kShow) {
    screen_.Dimmed(text);
    line_open_ = !text.ends_with('\n');
    return;
  }
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t';
    if (!space && !in_word_) ++words_;
    in_word_ = !space;
  }
  screen_.ReplaceLine(fmt::format("thinking: {} words", words_));
}

void AnswerPrinter::EndReasoning() {
  if (!std::exchange(in_reasoning_, false)) return;
  if (mode_ == ReasoningMode::kFold) {
    screen_.ReplaceLine("");
    const std::chrono::duration<double> time = Clock::now() - start_;
    screen_.Dimmed(fmt::format("[thought for {:.1f} s, {} words]\n", time.count(), words_));
  } else {
    screen_.Dimmed(line_open_ ? "\n" : "");
    screen_.Dimmed(screen_.colours() ? "\n" : "[answer]\n");
  }
  line_open_ = false;
}

void AnswerPrinter::PrintContent(std::string_view text) {
  if (!in_content_) {
    EndReasoning();
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return;
    in_content_ = true;
  }
  screen_.Text(text);
  line_open_ = !text.ends_with('\n');
}

void AnswerPrinter::End() {
  EndReasoning();
  // In pipes every answer, also an empty one, has at least one line.
  if (line_open_ || (!in_content_ && !screen_.terminal())) screen_.Text("\n");
  line_open_ = false;
}

}  // namespace switchyard::chat
