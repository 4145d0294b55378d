// The rows of the step attend, as functions; attend_table.cpp puts them into the table.
#pragma once

#include "kernels/attend/attend.h"

namespace moxie {

struct AttendTileCode;

/// The definition in double precision: each token and head alone, in two passes over its keys.
void attend_reference(const AttendParams& params);

/// Flash: one pass over the keys with a running maximum, F32, all query heads of a KV head
/// together. Results do not depend on threads, chunks or the rest of the batch, to the bit. With
/// the code for BF16 products, queries and weights are rounded to 2^-9.
void attend_flash(const AttendParams& params, const AttendTileCode& code);
/// Shapes that the flash rows cannot run, and their scratch.
const char* attend_flash_refuses(const AttendParams& params);
const char* attend_flash_neon_refuses(const AttendParams& params);
const char* attend_flash_bf16_refuses(const AttendParams& params);
uint64_t attend_flash_workspace(const AttendParams& params);
/// Whether the launch is large enough for the rows that round queries and weights to BF16 to run
/// unasked.
bool attend_flash_bf16_is_worth_it(const AttendParams& params);

#if MOXIE_HAS_CUDA
/// Split over keys, with mma: head size 64, BF16 or F8E4M3 cache, up to 16 query heads a KV head.
/// In every CUDA row the positions of a sequence's tokens in a launch must be consecutive, and a
/// missing page that a token needs gives NaN.
void attend_any_f32_split_cuda(const AttendParams& params);
const char* attend_split_cuda_refuses(const AttendParams& params);
/// Head sizes up to 512, every cache type. Slow.
void attend_any_f32_plain_cuda(const AttendParams& params);
const char* attend_plain_cuda_refuses(const AttendParams& params);
/// Many tokens of a sequence, with wgmma: head size 64, BF16 cache, 8 query heads a KV head, pages
/// of a multiple of 16 tokens.
void attend_bf16_prefill_wgmma_sm90(const AttendParams& params);
/// The same shapes. A token's result is the same for any batch and any chunks.
void attend_bf16_ordered_wgmma_sm90(const AttendParams& params);
/// The same two for a cache in F8E4M3, whose codes a block widens to BF16.
void attend_e4m3_prefill_wgmma_sm90(const AttendParams& params);
void attend_e4m3_ordered_wgmma_sm90(const AttendParams& params);
double attend_prefill_sm90_cost(const AttendParams& params);
/// The same shapes and the same promise, with mma.sync, on every device.
void attend_bf16_ordered_mma_cuda(const AttendParams& params);
double attend_ordered_mma_cost(const AttendParams& params);
/// Shapes that these rows for many tokens cannot run, and their scratch.
const char* attend_prefill_refuses(const AttendParams& params);
uint64_t attend_prefill_workspace(const AttendParams& params);
/// FlashInfer's templates, for many tokens of a sequence and mixes with decode tokens: head size
/// 64, BF16 cache, 8 query heads a KV head, pages of any size. FA2 is for every device, FA3 for
/// Hopper. Only in builds with FlashInfer.
void attend_bf16_prefill_flashinfer_fa2_cuda(const AttendParams& params);
const char* attend_flashinfer_fa2_refuses(const AttendParams& params);
uint64_t attend_flashinfer_fa2_workspace(const AttendParams& params);
double attend_flashinfer_fa2_cost(const AttendParams& params);
void attend_bf16_prefill_flashinfer_fa3_sm90(const AttendParams& params);
const char* attend_flashinfer_fa3_refuses(const AttendParams& params);
uint64_t attend_flashinfer_fa3_workspace(const AttendParams& params);
double attend_flashinfer_fa3_cost(const AttendParams& params);
#endif

}  // namespace moxie
