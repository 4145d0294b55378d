// Spans over the bytes that embedded_data.S holds, or none where models/tiny was absent.
#include "model/embedded.h"

#ifdef MOXIE_EMBEDDED
extern "C" {
extern const char moxie_embedded_weights_begin[], moxie_embedded_weights_end[];
extern const char moxie_embedded_config_begin[], moxie_embedded_config_end[];
extern const char moxie_embedded_tokenizer_begin[], moxie_embedded_tokenizer_end[];
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

}  // namespace moxie
