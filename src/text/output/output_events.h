// Pieces of a parsed output, and the buffer of text that is not parsed yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The parts of a model's output that a client receives separately: reasoning, content, tool calls.

// One piece of an output. The pieces of one kind, concatenated, are the text of that kind.
struct OutputEvent {
  enum class Kind {
    kReasoning,  // text
    kContent,    // text
    kCallBegin,  // text: the function's name; call_id
    kArguments,  // text: a piece of the call's arguments, usually a JSON object
    kCallEnd,
  };
  Kind kind = Kind::kContent;
  int32_t call = -1;  // index of the call within the output; −1 for reasoning and content
  std::string text;
  std::string call_id;  // as the model wrote it; empty if the format has no ids

  bool operator==(const OutputEvent&) const = default;
};

// Collects the events of one output. Adjacent pieces of one kind become one event. Belongs to one
// OutputParser.
class OutputEvents {
 public:
  void Reasoning(std::string_view text) { Add(OutputEvent::Kind::kReasoning, -1, text); }
  void Content(std::string_view text) { Add(OutputEvent::Kind::kContent, -1, text); }
  void BeginCall(std::string_view name, std::string_view id);
  void Arguments(std::string_view text) { Add(OutputEvent::Kind::kArguments, calls_ - 1, text); }
  void EndCall();

  int32_t calls() const { return calls_; }  // number of calls begun so far
  std::vector<OutputEvent> Take() { return std::move(events_); }

 private:
  void Add(OutputEvent::Kind kind, int32_t call, std::string_view text);

  std::vector<OutputEvent> events_;
  int32_t calls_ = 0;
};

// Writes the content and the tool calls of one output. White space next to a call is part of the
// call's markup: it is dropped before a call, and at the end of an output that ends with a call.
// White space elsewhere is kept.
class CallWriter {
 public:
  // Does not own `out`.
  explicit CallWriter(OutputEvents& out) : out_(out) {}

  void Content(std::string_view text);  // holds back white space at its end
  void BeginCall(std::string_view name, std::string_view id = {});
  void Arguments(std::string_view text) { out_.Arguments(text); }
  void EndCall() { out_.EndCall(); }
  void Finish();  // the output has ended

 private:
  OutputEvents& out_;
  std::string space_;        // white space that is held back
  bool after_call_ = false;  // true if only white space has followed the last call
};

bool IsMarkupSpace(char c);  // space, tab, CR or LF
// `text` without white space at both ends.
std::string_view TrimMarkupSpace(std::string_view text);
// True if `text` is white space only.
bool IsBlank(std::string_view text);

// Text that arrives in pieces and is consumed from the front, with search for markers.

// The unprocessed text of one parser. Appending, searching and consuming take linear time in total,
// however the text is cut into pieces. Views of rest() are valid until the next change.
class PieceBuffer {
 public:
  void Append(std::string_view piece);
  void End() { ended_ = true; }  // no piece will follow
  bool ended() const { return ended_; }

  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  bool empty() const { return at_ == text_.size(); }
  void Consume(size_t bytes);
  void ConsumeSpace();  // leading white space

  // The position of the earliest marker in rest(), and the marker. If rest() has no complete
  // marker, `marker` is empty, and `begin` is the length of the text that cannot be part of a
  // marker.
  struct Found {
    size_t begin = 0;
    std::string_view marker;
  };
  // No marker may be a prefix of another one. The list must outlive the buffer, because a repeated
  // search with the same list continues where the last one ended.
  Found Find(std::span<const std::string_view> markers);

  enum class Match { kYes, kNo, kPartly };  // kPartly: rest() is a proper prefix of the marker
  Match StartsWith(std::string_view marker) const;

 private:
  std::string text_;
  size_t at_ = 0;                           // start of rest()
  const std::string_view* last_ = nullptr;  // markers of the last search
  size_t searched_ = 0;                     // bytes of rest() that the last search has covered
  bool ended_ = false;
};

}  // namespace switchyard
