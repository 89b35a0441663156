// The gradient of the weight; after pieces.cu.

constexpr int COLUMNS = C == 64 ? 4 : 2;     // of a warp's part, in eights
constexpr int LOADS = M * CHUNKS / THREADS;  // of 16 bytes, that a thread takes through BatchNorm
static_assert(M * CHUNKS % THREADS == 0, "every thread has the same to do");

// As ``weight_gradient`` in weight_gradient.py, whose arguments these are, for the whole weight at once. With ENTER, the
// last three are those of the BatchNorm that x goes through first.
KERNEL(THREADS) weight_gradient(
    const u16* x, const u16* gradient, const u16* y, const float* sums, const float* norm, const float* gamma,
    u16* through, float* parts, float* grad_gamma, float* grad_beta, const float* norm_below, const float* gamma_below,
    const float* beta_below, int pixels, int per, int runs) {
    SHARED(shared);
    unsigned char* held = shared + 2 * TILE_BYTES;  // the tile's gradient
    const u32 tile_at = shared_address(shared), held_at = shared_address(held);
    const int lane = THREAD % 32, chunk = THREAD % CHUNKS;
    const int begin = PROGRAM * per, tiles = (pixels + M - 1) / M;
    const int end = begin + per < tiles ? begin + per : tiles;

    u128 g[LOADS], v[LOADS];
    auto ask = [&](int tile) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int at = tile * M + (THREAD + i * THREADS) / CHUNKS;
            if (FULL || at < pixels) {
                g[i] = read<u128>(gradient + (at * C + 8 * chunk));
                v[i] = read<u128>(y + (at * C + 8 * chunk));
            }
        }
    };
    fetch(tile_at, x, begin, pixels);
    copies_end();
    ask(begin);
#if ENTER
    const Entry enter(norm_below, gamma_below, beta_below);
#endif
    no_columns(shared);
    no_columns(shared + TILE_BYTES);
    float* found = reinterpret_cast<float*>(held + M * STEP);
    const Through back(sums, runs, norm, gamma, pixels, found, grad_gamma, grad_beta);
    Part<SPLIT, COLUMNS> part;

    for (int tile = begin; tile < end; tile++) {
        const int other = (tile - begin) % 2 * TILE_BYTES;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int pixel = (THREAD + i * THREADS) / CHUNKS, at = tile * M + pixel;
            u128 left = {0, 0, 0, 0};
            if (FULL || at < pixels) {
                left = back(g[i], v[i]);
                write<u128>(through + (at * C + 8 * chunk), left);
            }
            *reinterpret_cast<u128*>(held + place(pixel, chunk)) = left;
        }
        await_copies<0>();
#if ENTER
        enter(shared + other, tile, pixels);
#endif
        barrier();
        if (tile + 1 < end) {
            fetch(tile_at + TILE_BYTES - other, x, tile + 1, pixels);
            copies_end();
            ask(tile + 1);
        }
#pragma unroll 1
        for (int step = part.share; step < M / 16; step += SPLIT) {
            u32 b[COLUMNS / 2][4];
#pragma unroll
            for (int n = 0; n < COLUMNS / 2; n++) {
                load_turned(b[n], held_at + place(16 * step + lane % 16, part.column * COLUMNS + lane / 16) + 32 * n);
            }
            const int pixel = 16 * step + lane % 8 + lane / 16 * 8;
            const u32 above = tile_at + other + place(corner(pixel), 2 * part.row + lane / 8 % 2);
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                u32 a[4];
                load_turned(a, above + away(tap));
#pragma unroll
                for (int n = 0; n < COLUMNS; n++) {
                    multiply(part.sum[tap][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
                }
            }
        }
        barrier();
    }
    part.write_up(shared, parts);
}
