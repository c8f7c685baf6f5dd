#include "chat/chat.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>

#include "chat/chat_client.h"
#include "chat/commands.h"
#include "chat/line_reader.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

// Whether the end of the server can be the reason of the error.
bool MayBeLost(const Error& error) {
  return error.kind() == ErrorKind::kPeer || error.kind() == ErrorKind::kTimeout;
}

class Chat {
 public:
  Chat(const ChatOptions& options, Signals& signals, const std::function<void()>& check)
      : options_(options),
        signals_(signals),
        check_(check),
        screen_(Screen::OfThisProcess()),
        client_(HttpClient(options.url, options.api_key, options.connection, signals),
                !options.api_key.empty()),
        state_{.conversation = Conversation(options.system)} {
    const auto usual = screen_.terminal() ? ReasoningMode::kShow : ReasoningMode::kHide;
    state_.reasoning = options.reasoning.value_or(usual);
  }

  void Run() {
    model_ = client_.ChooseModel(options_.model);
    if (options_.once) return AskOnce();
    if (isatty(STDIN_FILENO) != 0 && screen_.terminal()) return Interact();
    const auto reader = MakePlainReader(signals_, /*terminal=*/false);
    for (InputLine line; (line = reader->Read("")).kind == InputLine::Kind::kText;)
      if (line.text.find_first_not_of(" \t") != std::string::npos) Ask(line.text);
  }

 private:
  void AskOnce() {
    std::string text = *options_.once;
    if (text == "-") {
      text.clear();
      const auto reader = MakePlainReader(signals_, /*terminal=*/false);
      for (InputLine line; (line = reader->Read("")).kind == InputLine::Kind::kText;)
        text += line.text + "\n";
      if (!text.empty()) text.pop_back();
    }
    if (text.empty()) throw Invalid("--once: the question is empty");
    Ask(text);
  }

  void Interact() {
    const HistoryFile history(options_.history ? HistoryFile::DefaultPath()
                                               : std::filesystem::path());
    std::unique_ptr<LineReader> reader = MakeEditingReader(signals_, screen_.colours());
    if (!reader) reader = MakePlainReader(signals_, /*terminal=*/true);
    for (const std::string& text : history.Load()) reader->Remember(text);
    screen_.Note(fmt::format("{} at {}. /help lists commands, Ctrl-D ends.", Shortened(model_),
                             options_.url.Text()));
    while (!state_.ended) {
      const InputLine line = ReadText(*reader);
      if (line.kind == InputLine::Kind::kEnd) return;
      if (line.kind == InputLine::Kind::kCancelled) continue;
      if (line.text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (!line.text.starts_with(' ')) {
        reader->Remember(line.text);
        history.Append(line.text);
      }
      Do(line.text);
    }
  }

  // One line, or several that a backslash joins.
  InputLine ReadText(LineReader& reader) {
    InputLine text = reader.Read(">");
    while (text.kind == InputLine::Kind::kText && text.text.ends_with('\\')) {
      text.text.back() = '\n';
      InputLine more = reader.Read(".");
      if (more.kind != InputLine::Kind::kText) return more;
      text.text += more.text;
    }
    return text;
  }

  // Failures of commands and requests do not end an interactive chat.
  void Do(const std::string& line) {
    try {
      if (IsCommand(line)) {
        if (const std::string said = RunCommand(line, &state_); !said.empty()) screen_.Note(said);
        return;
      }
      Ask(line.starts_with("//") ? line.substr(1) : line);
    } catch (const Interrupted& end) {
      if (end.signal != SIGINT) throw;
      screen_.Note("[stopped]");
    } catch (const Error& e) {
      if (MayBeLost(e)) check_();
      screen_.Failure(e.what());
    } catch (const std::exception& e) {
      screen_.Failure(e.what());
    }
  }

  void Ask(const std::string& text) {
    const std::string request = state_.conversation.Request(model_, options_.sampling, text);
    const auto start = std::chrono::steady_clock::now();
    Answer answer;
    AnswerPrinter printer(screen_, state_.reasoning);
    const auto keep = [&] {
      if (answer.content().empty() && answer.reasoning().empty()) return;
      state_.conversation.Add({text, answer.content(), answer.reasoning()});
    };
    try {
      client_.Ask(request, &answer, [&](const AnswerPart& part) { printer.Print(part); });
    } catch (const Interrupted&) {
      if (screen_.terminal()) EndAfterFailure(printer);
      keep();  // the user has seen this part of the answer
      throw;
    } catch (const Error&) {
      if (!answer.content().empty() || !answer.reasoning().empty()) EndAfterFailure(printer);
      throw;
    }
    printer.End();
    state_.conversation.Add({text, answer.content(), answer.reasoning()});
    if (answer.finish_reason() == "length")
      screen_.Dimmed("[the answer ends at the token limit; see --max-tokens]\n");
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (options_.stats) PrintStats(answer, time.count());
  }

  // The caller reports the error that ended the answer. An error of writing to a closed terminal is
  // ignored, so that it does not replace that error.
  static void EndAfterFailure(AnswerPrinter& printer) {
    try {
      printer.End();
    } catch (const Error&) {
    }
  }

  static void PrintStats(const Answer& answer, double seconds) {
    if (answer.output_tokens() < 0) return;
    const std::string line = fmt::format("[{} prompt tokens, {} output tokens in {:.2f} s]\n",
                                         answer.prompt_tokens(), answer.output_tokens(), seconds);
    std::fputs(line.c_str(), stderr);  // which may be closed
  }

  const ChatOptions& options_;
  Signals& signals_;
  const std::function<void()>& check_;
  Screen screen_;
  ChatClient client_;
  ChatState state_;
  std::string model_;
};

}  // namespace

int RunChat(const ChatOptions& options, Signals& signals, const std::function<void()>& check) {
  try {
    Chat(options, signals, check).Run();
    return 0;
  } catch (const Interrupted& end) {
    return 128 + end.signal;
  } catch (const Error& e) {
    if (MayBeLost(e)) check();
    throw;
  }
}

}  // namespace switchyard::chat
