#include <dlfcn.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <optional>
#include <utility>

#include "chat/line_reader.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

// The part of libedit's interface that is used, from its manual editline(3). The numbers are those
// of histedit.h; they belong to the ABI of libedit.so.2.
struct LibEdit {
  struct Editor;   // EditLine
  struct History;  // History
  struct Event {   // HistEvent
    int number;
    const char* text;
  };
  enum Operation {
    kPromptEsc = 21,
    kEditor = 2,
    kBind = 4,
    kHist = 10,
    kGetCharacter = 13,
    kClientData = 14
  };
  enum HistoryOperation { kSetSize = 1, kEnter = 10, kSetUnique = 20 };

  Editor* (*init)(const char* program, FILE* in, FILE* out, FILE* error) = nullptr;
  void (*end)(Editor*) = nullptr;
  const char* (*gets)(Editor*, int* count) = nullptr;
  int (*set)(Editor*, int operation, ...) = nullptr;
  int (*wset)(Editor*, int operation, ...) = nullptr;
  int (*get)(Editor*, int operation, ...) = nullptr;
  void (*resize)(Editor*) = nullptr;
  History* (*history_init)() = nullptr;
  void (*history_end)(History*) = nullptr;
  int (*history)(History*, Event*, int operation, ...) = nullptr;

  bool loaded = false;

  // Returns whether the library is installed and has all functions. It stays loaded.
  bool Load() {
    void* library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto find = [library](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    return find(&init, "el_init") && find(&end, "el_end") && find(&gets, "el_gets") &&
           find(&set, "el_set") && find(&wset, "el_wset") && find(&get, "el_get") &&
           find(&resize, "el_resize") && find(&history_init, "history_init") &&
           find(&history_end, "history_end") && find(&history, "history");
  }
};

// Loaded at the first call. The library's callbacks receive an editor only, and call this.
const LibEdit& Library() {
  static const LibEdit library = [] {
    LibEdit found;
    found.loaded = found.Load();
    return found;
  }();
  return library;
}

// A line end within a text while it is edited in one line: U+23CE.
constexpr wchar_t kLineEnd = L'\u23ce';
constexpr std::string_view kLineEndBytes = "\xe2\x8f\x8e";

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// The characters of a terminal, with the text between the marks of a bracketed paste
// (https://invisible-island.net/xterm/ctlseqs) kept as one line.
class Keyboard {
 public:
  explicit Keyboard(Signals& signals) : signals_(signals) {}

  // Returns 1 and a character, 0 at the end of the input, or -1 after a signal. `resized` is called
  // if the size of the terminal changes.
  template <typename Resized>
  int Next(wchar_t* character, const Resized& resized) {
    while (true) {
      if (TakeMark(pasting_ ? "\x1b[201~" : "\x1b[200~")) {
        pasting_ = !pasting_;
        continue;
      }
      if (!bytes_.empty() && Decode(character)) return 1;
      const ssize_t count = Fill(resized);
      if (count <= 0) return static_cast<int>(count);
    }
  }

  // The signal that ended the last call with -1, once.
  std::optional<int> TakeSignal() { return std::exchange(signal_, std::nullopt); }
  void BeginLine() { first_ = true; }
  void EndPaste() { pasting_ = false; }

 private:
  // Removes the mark from the front. Waits a moment if only its beginning has arrived.
  bool TakeMark(std::string_view mark) {
    const int moment = pasting_ ? 1000 : 30;  // ms; parts of an end mark may arrive late
    while (true) {
      if (bytes_.starts_with(mark)) {
        bytes_.erase(0, mark.size());
        return true;
      }
      if (bytes_.empty() || !mark.starts_with(bytes_)) return false;
      pollfd one{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (poll(&one, 1, moment) <= 0 || !Receive()) return false;
    }
  }

  bool Decode(wchar_t* character) {
    std::mbstate_t state{};
    size_t used = std::mbrtowc(character, bytes_.data(), bytes_.size(), &state);
    if (used == static_cast<size_t>(-2)) return false;  // the beginning of a character
    if (used == static_cast<size_t>(-1) || used == 0) {
      *character = static_cast<unsigned char>(bytes_.front());
      used = 1;
    }
    const bool line_end = *character == L'\n' || *character == L'\r';
    bytes_.erase(0, used);
    if (pasting_ && line_end) *character = kLineEnd;
    // Within a pasted text, control characters are no commands of the editor.
    if (pasting_ && *character < L' ') *character = L' ';
    return true;
  }

  bool Receive() {
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
    if (count <= 0) return false;
    // While no line is edited, the terminal keeps Ctrl-D as NUL. Later, NUL is Ctrl-Space.
    if (std::exchange(first_, false)) std::replace(bytes, bytes + count, '\0', '\4');
    bytes_.append(bytes, count);
    return true;
  }

  template <typename Resized>
  int Fill(const Resized& resized) {
    try {
      while (!signals_.WaitUnlessResized(STDIN_FILENO)) resized();
    } catch (const Interrupted& end) {
      signal_ = end.signal;
      return -1;
    } catch (const Error&) {
      return 0;
    }
    return Receive() ? 1 : 0;
  }

  Signals& signals_;
  std::string bytes_;  // received, not yet returned
  bool first_ = true;  // no byte has been received since BeginLine
  bool pasting_ = false;
  std::optional<int> signal_;
};

class EditingReader : public LineReader {
 public:
  EditingReader(Signals& signals, bool colours) : keyboard_(signals), colours_(colours) {}
  EditingReader(const EditingReader&) = delete;
  EditingReader& operator=(const EditingReader&) = delete;
  ~EditingReader() override {
    if (editor_ != nullptr) lib_.end(editor_);
    if (history_ != nullptr) lib_.history_end(history_);
  }

  bool Start() {
    editor_ = lib_.init("switchyard", stdin, stdout, stderr);
    history_ = lib_.history_init();
    if (editor_ == nullptr || history_ == nullptr) return false;
    LibEdit::Event event{};
    lib_.history(history_, &event, LibEdit::kSetSize, 1000);
    lib_.history(history_, &event, LibEdit::kSetUnique, 1);
    lib_.set(editor_, LibEdit::kClientData, this);
    lib_.set(editor_, LibEdit::kEditor, "emacs");
    lib_.set(editor_, LibEdit::kPromptEsc, &EditingReader::Prompt, '\1');
    lib_.set(editor_, LibEdit::kHist, lib_.history, history_);
    lib_.wset(editor_, LibEdit::kGetCharacter, &EditingReader::NextCharacter);
    constexpr const char* kKeys[][2] = {
        {"^I", "ed-insert"},           {"^R", "em-inc-search-prev"},
        {"^W", "ed-delete-prev-word"}, {"\\e[1~", "ed-move-to-beg"},
        {"\\e[H", "ed-move-to-beg"},   {"\\e[4~", "ed-move-to-end"},
        {"\\e[F", "ed-move-to-end"},   {"\\e[3~", "ed-delete-next-char"},
        {"\\e[1;5D", "ed-prev-word"},  {"\\e[1;5C", "em-next-word"}};
    for (const auto& [keys, command] : kKeys)
      lib_.set(editor_, LibEdit::kBind, keys, command, nullptr);
    return true;
  }

  InputLine Read(const std::string& prompt) override {
    // The library prints a sequence together with the character after it, so none is at the end.
    prompt_ = colours_ ? fmt::format("\1\x1b[1m\1{}\1\x1b[0m\1 ", prompt) : prompt + " ";
    lib_.resize(editor_);
    SwitchPaste(true);
    keyboard_.BeginLine();
    int count = 0;
    const char* line = lib_.gets(editor_, &count);
    SwitchPaste(false);
    keyboard_.EndPaste();
    if (const auto signal = keyboard_.TakeSignal()) {
      std::fputs("\n", stdout);  // fmt::print would throw if the terminal is closed
      if (*signal != SIGINT) throw Interrupted(*signal);
      return {InputLine::Kind::kCancelled, {}};
    }
    if (line == nullptr || count <= 0) {
      std::fputs("\n", stdout);
      return {};
    }
    std::string text(line);
    if (text.ends_with('\n')) text.pop_back();
    return {InputLine::Kind::kText, Replaced(std::move(text), kLineEndBytes, "\n")};
  }

  void Remember(const std::string& text) override {
    const std::string line = Replaced(text, "\n", kLineEndBytes);
    LibEdit::Event event{};
    lib_.history(history_, &event, LibEdit::kEnter, line.c_str());
  }

 private:
  static EditingReader* Of(LibEdit::Editor* editor) {
    void* self = nullptr;
    Library().get(editor, LibEdit::kClientData, &self);
    return static_cast<EditingReader*>(self);
  }

  static const char* Prompt(LibEdit::Editor* editor) { return Of(editor)->prompt_.c_str(); }

  static int NextCharacter(LibEdit::Editor* editor, wchar_t* character) {
    EditingReader* self = Of(editor);
    return self->keyboard_.Next(character, [self] { self->lib_.resize(self->editor_); });
  }

  // Bracketed paste is on only while a line is edited. Terminals without it ignore the sequence.
  void SwitchPaste(bool on) {
    if (!colours_) return;
    std::fputs(on ? "\x1b[?2004h" : "\x1b[?2004l", stdout);
    std::fflush(stdout);
  }

  const LibEdit& lib_ = Library();
  Keyboard keyboard_;
  const bool colours_;
  std::string prompt_;
  LibEdit::Editor* editor_ = nullptr;
  LibEdit::History* history_ = nullptr;
};

}  // namespace

std::unique_ptr<LineReader> MakeEditingReader(Signals& signals, bool colours) {
  const char* term = std::getenv("TERM");
  if (term == nullptr || *term == '\0' || std::strcmp(term, "dumb") == 0) return nullptr;
  if (!Library().loaded) return nullptr;
  // The editor decodes the terminal's characters by the locale.
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
    std::setlocale(LC_CTYPE, "C.UTF-8");
  auto reader = std::make_unique<EditingReader>(signals, colours);
  if (!reader->Start()) return nullptr;
  return reader;
}

}  // namespace switchyard::chat
