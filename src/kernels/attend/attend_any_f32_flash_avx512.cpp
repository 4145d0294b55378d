// The attend tile for AVX-512 (F, BW, DQ, VL), in F32.
#include "kernels/attend/attend_tile_avx512.h"

namespace moxie {

extern const AttendTileCode kAttendTileAvx512 = AttendTileBody<Avx512>::code();

}  // namespace moxie
