// Spans over the bytes that embedded_data.S holds, or none where models/tiny was absent.
#include "model/embedded.h"

#ifdef MOXIE_EMBEDDED
extern "C" {
extern const char moxie_embedded_weights_begin[], moxie_embedded_weights_end[];
extern const char moxie_embedded_config_begin[], moxie_embedded_config_end[];
extern const char moxie_embedded_tokenizer_begin[], moxie_embedded_tokenizer_end[];
}
#endif
#ifdef MOXIE_EMBEDDED_EAGLE3
extern "C" {
extern const char moxie_eagle3_weights_begin[], moxie_eagle3_weights_end[];
extern const char moxie_eagle3_config_begin[], moxie_eagle3_config_end[];
}
#endif
#ifdef MOXIE_EMBEDDED_DFLASH
extern "C" {
extern const char moxie_dflash_weights_begin[], moxie_dflash_weights_end[];
extern const char moxie_dflash_config_begin[], moxie_dflash_config_end[];
}
#endif

namespace moxie {

const EmbeddedModel& embedded_model() {
#ifdef MOXIE_EMBEDDED
  static const EmbeddedModel model = {
      .weights = {reinterpret_cast<const std::byte*>(moxie_embedded_weights_begin),
                  reinterpret_cast<const std::byte*>(moxie_embedded_weights_end)},
      .config_json = {moxie_embedded_config_begin, moxie_embedded_config_end},
      .tokenizer_json = {moxie_embedded_tokenizer_begin, moxie_embedded_tokenizer_end}};
#else
  static const EmbeddedModel model;
#endif
  return model;
}

const EmbeddedHead& embedded_eagle3() {
#ifdef MOXIE_EMBEDDED_EAGLE3
  static const EmbeddedHead head = {
      .weights = {reinterpret_cast<const std::byte*>(moxie_eagle3_weights_begin),
                  reinterpret_cast<const std::byte*>(moxie_eagle3_weights_end)},
      .config_json = {moxie_eagle3_config_begin, moxie_eagle3_config_end}};
#else
  static const EmbeddedHead head;
#endif
  return head;
}

const EmbeddedHead& embedded_dflash() {
#ifdef MOXIE_EMBEDDED_DFLASH
  static const EmbeddedHead head = {
      .weights = {reinterpret_cast<const std::byte*>(moxie_dflash_weights_begin),
                  reinterpret_cast<const std::byte*>(moxie_dflash_weights_end)},
      .config_json = {moxie_dflash_config_begin, moxie_dflash_config_end}};
#else
  static const EmbeddedHead head;
#endif
  return head;
}

}  // namespace moxie
