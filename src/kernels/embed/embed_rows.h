// The rows of the step embed, as functions; embed_table.cpp puts them into the table.
#pragma once

#include "kernels/embed/embed.h"

namespace moxie {

/// Any table format, one element after another through the scalar codecs.
void embed_reference(const EmbedParams& params);

/// Portable C++, tokens in parallel, whole rows at a time.
void embed_any_f32_gather_portable(const EmbedParams& params);

#if MOXIE_HAS_CUDA
/// One block a token; table rows of a multiple of 4 columns, table and output aligned to 16 bytes.
void embed_any_f32_gather_cuda(const EmbedParams& params);
#endif

}  // namespace moxie
