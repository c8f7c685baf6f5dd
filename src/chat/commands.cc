#include "chat/commands.h"

#include <cstdlib>
#include <system_error>

#include "core/error.h"
#include "core/format.h"
#include "core/regular_file.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

bool Conversation::Undo() {
  if (turns_.empty()) return false;
  turns_.pop_back();
  return true;
}

Json Conversation::Messages(bool with_reasoning) const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const Turn& turn : turns_) {
    messages.push_back({{"role", "user"}, {"content", turn.user}});
    Json answer = {{"role", "assistant"}, {"content", turn.answer}};
    if (with_reasoning && !turn.reasoning.empty()) answer["reasoning_content"] = turn.reasoning;
    messages.push_back(std::move(answer));
  }
  return messages;
}

std::string Conversation::Request(const std::string& model, const Sampling& sampling,
                                  const std::string& user) const {
  Json messages = Messages(/*with_reasoning=*/false);
  messages.push_back({{"role", "user"}, {"content", user}});
  Json body = {{"model", model},
               {"messages", std::move(messages)},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (sampling.temperature) body["temperature"] = *sampling.temperature;
  if (sampling.top_p) body["top_p"] = *sampling.top_p;
  if (sampling.max_tokens) body["max_tokens"] = *sampling.max_tokens;
  if (sampling.seed) body["seed"] = *sampling.seed;
  if (!sampling.reasoning_effort.empty()) body["reasoning_effort"] = sampling.reasoning_effort;
  if (!sampling.chat_template_kwargs.empty())
    body["chat_template_kwargs"] = Json::parse(sampling.chat_template_kwargs);
  // Input may have bytes that are not UTF-8; JSON cannot express them.
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Conversation::Saved(bool json) const {
  if (json)
    return Json{{"messages", Messages(/*with_reasoning=*/true)}}.dump(
               2, ' ', false, Json::error_handler_t::replace) +
           "\n";
  std::string text;
  if (!system_.empty()) text += fmt::format("## System\n\n{}\n\n", system_);
  for (const Turn& turn : turns_) {
    text += fmt::format("## User\n\n{}\n\n## Assistant\n\n", turn.user);
    if (!turn.reasoning.empty())
      text += fmt::format("<details><summary>Reasoning</summary>\n\n{}\n\n</details>\n\n",
                          turn.reasoning);
    text += turn.answer + "\n\n";
  }
  if (text.ends_with("\n\n")) text.pop_back();
  return text;
}

namespace {

constexpr const char* kHelp =
    R"(/help            this list
/reset           begin a new chat; the system prompt stays
/undo            remove the last question and its answer
/system [TEXT]   show the system prompt, or set it; /system - removes it
/reasoning MODE  show, fold or hide the reasoning of the model
/save FILE       write the chat to a new file: JSON if it ends with .json, else Markdown
/exit            end the chat, like Ctrl-D

Ctrl-C stops an answer. \ at the end of a line continues the text. // at the start sends one slash.
Arrow keys and Ctrl-R search earlier lines. A line that begins with a space is not kept.)";

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::filesystem::path ExpandHome(std::string_view path) {
  const char* home = std::getenv("HOME");
  if (path.starts_with("~/") && home != nullptr)
    return std::filesystem::path(home) / path.substr(2);
  return path;
}

std::string Save(std::string_view name, ChatState* state) {
  if (name.empty()) throw Invalid("/save: want a file, like /save chat.md or /save chat.json");
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(ExpandHome(name), error);
  const bool exists = !error && std::filesystem::exists(path, error);
  if (error) throw Invalid("/save {}: {}", name, error.message());
  if (exists && !state->saved.contains(path))
    throw Invalid("/save {}: the file exists; choose another name", name);
  WriteWholeFile(path, state->conversation.Saved(path.extension() == ".json"));
  state->saved.insert(path);
  return fmt::format("{} turns saved to {}", state->conversation.turns().size(), path.string());
}

std::string System(std::string_view text, ChatState* state) {
  if (text.empty()) {
    const std::string& now = state->conversation.system();
    return now.empty() ? "there is no system prompt" : now;
  }
  state->conversation.SetSystem(text == "-" ? std::string() : std::string(text));
  return text == "-" ? "the system prompt is removed" : "the system prompt is set";
}

}  // namespace

bool IsCommand(std::string_view line) { return line.starts_with('/') && !line.starts_with("//"); }

ReasoningMode ParseReasoningMode(std::string_view text, std::string_view name) {
  if (text == "show") return ReasoningMode::kShow;
  if (text == "fold") return ReasoningMode::kFold;
  if (text == "hide") return ReasoningMode::kHide;
  throw Invalid("{}: want show, fold or hide", name);
}

std::string RunCommand(std::string_view line, ChatState* state) {
  const size_t space = std::min(line.find_first_of(" \t\n"), line.size());
  const std::string_view command = line.substr(0, space);
  const std::string_view argument = Trimmed(line.substr(space));
  const auto takes_nothing = [&] {
    if (!argument.empty()) throw Invalid("{} takes no argument", command);
  };
  if (command == "/save") return Save(argument, state);
  if (command == "/system") return System(argument, state);
  if (command == "/reasoning") {
    state->reasoning = ParseReasoningMode(argument, "/reasoning");
    return {};
  }
  if (command == "/help" || command == "/?") {
    takes_nothing();
    return kHelp;
  }
  if (command == "/reset") {
    takes_nothing();
    state->conversation.Reset();
    return "a new chat begins";
  }
  if (command == "/undo") {
    takes_nothing();
    if (!state->conversation.Undo()) return "there is nothing to undo";
    return fmt::format("the last turn is removed; {} remain", state->conversation.turns().size());
  }
  if (command == "/exit" || command == "/quit") {
    takes_nothing();
    state->ended = true;
    return {};
  }
  throw Invalid("there is no command {}; /help lists them", command);
}

}  // namespace switchyard::chat
