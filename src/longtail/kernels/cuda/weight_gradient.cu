// The gradient of the weight; appended to tile.cu.

constexpr int N = C == 64 ? 4 : 2;           // columns per warp, in eights
constexpr int LOADS = M * CHUNKS / THREADS;  // of 16 bytes per thread
static_assert(M * CHUNKS % THREADS == 0, "every thread has the same to do");

// The backward of the BatchNorm above, of the 16 bytes that a thread has of each pixel:
// scale * (g - offset - slope * y).
struct Through {
    static constexpr int SLICES = THREADS / (2 * C);
    float scale[8], offset[8], slope[8];

    // ``sums`` (runs, 2, C) are the sums of the previous kernel; the first program stores their total, the gradients of
    // BatchNorm. ``found``: THREADS numbers of shared memory.
    INLINE Through(const float* sums, int runs, const float* norm, const float* gamma, int pixels, float* found,
                   float* grad_gamma, float* grad_beta) {
        if (THREAD < SLICES * 2 * C) {
            float sum = 0.0f;
#pragma unroll 8
            for (int run = THREAD / (2 * C); run < runs; run += SLICES) {
                sum += read<float>(sums + (run * 2 * C + THREAD % (2 * C)));
            }
            found[THREAD] = sum;
        }
        barrier();
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const int channel = 8 * (THREAD % CHUNKS) + c;
            float first = 0.0f, second = 0.0f;
            for (int slice = 0; slice < SLICES; slice++) {
                first += found[slice * 2 * C + channel];
                second += found[slice * 2 * C + C + channel];
            }
            if (PROGRAM == 0 && THREAD < CHUNKS) {
                write<float>(grad_beta + channel, first);
                write<float>(grad_gamma + channel, second);
            }
            const float rstd = read<float>(norm + C + channel);
            scale[c] = rstd * read<float>(gamma + channel);
            slope[c] = rstd * (second / (float)pixels);
            offset[c] = first / (float)pixels - read<float>(norm + channel) * slope[c];
        }
    }

    INLINE u128 operator()(const u128& g, const u128& y) const {
        const u32 gs[4] = {g.x, g.y, g.z, g.w}, ys[4] = {y.x, y.y, y.z, y.w};
        u32 two[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float one = scale[2 * c] * (low(gs[c]) - offset[2 * c] - low(ys[c]) * slope[2 * c]);
            const float other = scale[2 * c + 1] * (high(gs[c]) - offset[2 * c + 1] - high(ys[c]) * slope[2 * c + 1]);
            two[c] = rounded(one, other);
        }
        return u128{two[0], two[1], two[2], two[3]};
    }
};

// The part of the weight gradient that a warp computes: sixteen rows and 8 * N columns of each tap. SPLIT warps compute
// the same part for different pixels; they add their results one after the other in ``shared``, and the first writes.
struct Part {
    static_assert(WARPS == SPLIT * (C / 16) * (C / (8 * N)), "the warps share out the weight's gradient");
    static_assert(M / 16 % SPLIT == 0, "every warp has the same to do");
    int share = THREAD / 32 % SPLIT, row = THREAD / 32 / SPLIT % (C / 16), column = THREAD / 32 / SPLIT / (C / 16);
    float sum[9][N][4];

    INLINE Part() {
#pragma unroll
        for (int i = 0; i < 9 * N * 4; i++) sum[i / (N * 4)][i / 4 % N][i % 4] = 0.0f;
    }

    INLINE void write_up(unsigned char* shared, float* parts) {
        const int lane = THREAD % 32;
        float* shares = reinterpret_cast<float*>(shared) + THREAD / 32 / SPLIT * (9 * N * 4 * 32);
#pragma unroll 1
        for (int other = 1; other < SPLIT; other++) {
            if (share == other) {
#pragma unroll
                for (int i = 0; i < 9 * N * 4; i++) shares[32 * i + lane] = sum[i / (N * 4)][i / 4 % N][i % 4];
            }
            barrier();
            if (share == 0) {
#pragma unroll
                for (int i = 0; i < 9 * N * 4; i++) sum[i / (N * 4)][i / 4 % N][i % 4] += shares[32 * i + lane];
            }
            barrier();
        }
        if (share != 0) return;
#pragma unroll
        for (int i = 0; i < 9 * N * 2; i++) {
            const int tap = i / (2 * N), n = i / 2 % N, half = i % 2;
            const int in = 16 * row + 8 * half + lane / 4, out = 8 * (column * N + n) + 2 * (lane % 4);
            write<Pair>(parts + (((PROGRAM * 9 + tap) * C + in) * C + out),
                        Pair{sum[tap][n][2 * half], sum[tap][n][2 * half + 1]});
        }
    }
};

// Like ``weight_gradient`` in weights.py, with the same arguments, for the whole weight at once. With ENTER, the last
// three are those of the BatchNorm that is applied to x.
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
    Part part;

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
            u32 b[N / 2][4];
#pragma unroll
            for (int n = 0; n < N / 2; n++) {
                load_turned(b[n], held_at + place(16 * step + lane % 16, part.column * N + lane / 16) + 32 * n);
            }
            const int pixel = 16 * step + lane % 8 + lane / 16 * 8;
            const u32 above = tile_at + other + place(corner(pixel), 2 * part.row + lane / 8 % 2);
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                u32 a[4];
                load_turned(a, above + away(tap));
#pragma unroll
                for (int n = 0; n < N; n++) {
                    multiply(part.sum[tap][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
                }
            }
        }
        barrier();
    }
    part.write_up(shared, parts);
}
