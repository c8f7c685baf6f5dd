#include "server/disaggregation/kv_messages.h"

#include "engine/wire_fields.h"

namespace switchyard {

template <typename Codec, OneOf<KvHello> T>
void Fields(Codec& codec, T& m) {
  codec(m.backend, m.statement);
}
template <typename Codec, OneOf<KvWelcome> T>
void Fields(Codec& codec, T& m) {
  codec(m.refusal);
}
template <typename Codec, OneOf<KvKey> T>
void Fields(Codec& codec, T& m) {
  codec(m.room, m.index);
}
template <typename Codec, OneOf<KvArena> T>
void Fields(Codec& codec, T& m) {
  codec(m.process, m.descriptor, m.job, m.arena);
}
template <typename Codec, OneOf<KvWant> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.prompt_tokens, m.begin);
}
template <typename Codec, OneOf<KvRowsHead> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.layer, m.begin, m.end);
}
template <typename Codec, OneOf<KvPlace> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.version, m.group, m.begin, m.end, m.first_layer, m.end_layer, m.pages, m.state,
        m.arena);
}
template <typename Codec, OneOf<KvStateHead> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.layer);
}
template <typename Codec, OneOf<KvTaken> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.version);
}
template <typename Codec, OneOf<KvUnmapped> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.version, m.arena, m.why);
}
template <typename Codec, OneOf<KvDone> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.output);
}
template <typename Codec, OneOf<KvFailed> T>
void Fields(Codec& codec, T& m) {
  codec(m.key, m.error);
}

std::string EncodeHello(const KvHello& hello) { return EncodeFields(hello); }
KvHello DecodeHello(std::string_view bytes) { return DecodeFields<KvHello>(bytes); }
std::string EncodeWelcome(const KvWelcome& welcome) { return EncodeFields(welcome); }
KvWelcome DecodeWelcome(std::string_view bytes) { return DecodeFields<KvWelcome>(bytes); }
std::string EncodeKv(const KvMessage& message) { return EncodeFields(message); }
KvMessage DecodeKv(std::string_view bytes) { return DecodeFields<KvMessage>(bytes); }

}  // namespace switchyard
