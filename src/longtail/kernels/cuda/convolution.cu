// The convolution, forward and as the gradient of its input; appended to tile.cu.

constexpr int MINE = C / 4;            // channels per thread, consecutive: read and written at once
constexpr int NT = C / 8, KT = C / 16; // columns and rows of the weight, in eights and sixteens
constexpr int MT = M / (16 * WARPS);   // pixels per warp, in sixteens
static_assert(M % (16 * WARPS) == 0, "every warp has the same number of rows");

struct Some { u32 two[MINE / 2]; };    // the channels of a pixel that a thread has

INLINE Some read_some(const u16* maps, int pixel, int first) {
    Some found;
    const u16* from = maps + (pixel * C + first);
    if constexpr (MINE == 4) {
        unsigned long long both = read<unsigned long long>(from);
        found.two[0] = (u32)both;
        found.two[1] = (u32)(both >> 32);
    } else {
#pragma unroll
        for (int i = 0; i < MINE / 8; i++) {
            u128 four = read<u128>(from + 8 * i);
            found.two[4 * i] = four.x, found.two[4 * i + 1] = four.y;
            found.two[4 * i + 2] = four.z, found.two[4 * i + 3] = four.w;
        }
    }
    return found;
}

INLINE void write_some(u16* maps, int pixel, int first, const Some& some) {
    u16* to = maps + (pixel * C + first);
    if constexpr (MINE == 4) {
        write<unsigned long long>(to, some.two[0] | (unsigned long long)some.two[1] << 32);
    } else {
#pragma unroll
        for (int i = 0; i < MINE / 8; i++) {
            const u32* two = some.two + 4 * i;
            write<u128>(to + 8 * i, u128{two[0], two[1], two[2], two[3]});
        }
    }
}

// The weight, (9, C, C), with permuted columns: thread ``lane % 4`` gets its channels in its columns of all products.
INLINE void hold_weight(unsigned char* weights, const u16* weight) {
    for (int i = THREAD; i < 9 * C * CHUNKS; i += THREADS) {
        const u128 some = read<u128>(weight + 8 * i);
        const u32 two[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const int channel = 8 * (i % CHUNKS) + 2 * pair;
            const int at = place(i / CHUNKS, channel % MINE / 2) + 4 * (channel / MINE);
            *reinterpret_cast<u32*>(weights + at) = two[pair];
        }
    }
}

constexpr bool HELD = C == 16;  // whether registers hold the whole weight

// The pixels of a warp times the weight. ``corners`` are the first taps of the pixels, ``held`` the weight if HELD.
INLINE void convolve(float (&sum)[MT][NT][4], const u32 (&corners)[MT], u32 weight_at, const u32 (*held)[4]) {
    const int lane = THREAD % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0.0f;
#pragma unroll(HELD ? 9 : 1)
    for (int tap = 0; tap < 9; tap++) {
#pragma unroll
        for (int k = 0; k < KT; k++) {
            u32 b[NT / 2][4];
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                if constexpr (HELD) {
#pragma unroll
                    for (int i = 0; i < 4; i++) b[n][i] = held[tap][i];
                } else {
                    load_turned(b[n], weight_at + place(lane % 16, lane / 16) + place(tap * C + 16 * k, 2 * n));
                }
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
                u32 a[4];
                load_matrices(a, corners[m] + away(tap) + 32 * k);
#pragma unroll
                for (int n = 0; n < NT; n++) multiply(sum[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
    }
}

// Sums of all threads, added in ``shared`` (2 * WARPS * C numbers): one sum per warp and channel.
INLINE void gather_sums(float (&first)[MINE], float (&second)[MINE], float* shared) {
    const int lane = THREAD % 32, warp = THREAD / 32, mine = lane % 4 * MINE;
#pragma unroll
    for (int c = 0; c < MINE; c++) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            first[c] += across(first[c], lanes);
            second[c] += across(second[c], lanes);
        }
        if (lane < 4) {
            shared[2 * warp * C + mine + c] = first[c];
            shared[(2 * warp + 1) * C + mine + c] = second[c];
        }
    }
    barrier();
}

// The gradient through the ReLU below: its mask, and the sums that the backward of BatchNorm needs.
// BACK == 2: the ReLU ends a block; the gradient of the shortcut is added, and the output of the ReLU is known.
struct Passing {
    float mean[MINE], rstd[MINE], scale[MINE], shift[MINE], first[MINE], second[MINE];

    INLINE Passing(const float* norm, const float* gamma, const float* beta) {
        const int mine = THREAD % 4 * MINE;
#pragma unroll
        for (int c = 0; c < MINE; c++) {
            first[c] = second[c] = 0.0f;
            mean[c] = read<float>(norm + mine + c);
            rstd[c] = read<float>(norm + C + mine + c);
            if constexpr (BACK != 2) {  // computed as in Entry, so the mask is the same
                scale[c] = rstd[c] * read<float>(gamma + mine + c);
                shift[c] = read<float>(beta + mine + c) - mean[c] * scale[c];
            }
        }
    }

    INLINE Some operator()(const float (&value)[MINE], const Some& y, const Some& joined, const Some& seen) {
        Some left;
#pragma unroll
        for (int two = 0; two < MINE / 2; two++) {
            const float maps[2] = {low(y.two[two]), high(y.two[two])};
            float g[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = 2 * two + e;
                if constexpr (BACK == 2) {
                    const float out = e ? high(seen.two[two]) : low(seen.two[two]);
                    g[e] = out > 0 ? value[c] + (e ? high(joined.two[two]) : low(joined.two[two])) : 0.0f;
                } else {
                    g[e] = maps[e] * scale[c] + shift[c] > 0 ? value[c] : 0.0f;
                }
            }
            left.two[two] = rounded(g[0], g[1]);
            g[0] = low(left.two[two]), g[1] = high(left.two[two]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = 2 * two + e;
                first[c] += g[e];
                second[c] += g[e] * ((maps[e] - mean[c]) * rstd[c]);
            }
        }
        return left;
    }
};

// Like ``convolution`` in convolution.py, with the same arguments: ``per`` consecutive tiles per program. With ENTER,
// forward, norm, gamma and beta are those of the BatchNorm below.
KERNEL(THREADS) convolution(
    const u16* x, const u16* weight, u16* out, float* partial, const u16* below, const float* norm, const float* gamma,
    const float* beta, const u16* skip, const u16* seen, int pixels, int per) {
    SHARED(shared);
    unsigned char* weights = shared + 2 * TILE_BYTES;
    float* sums = reinterpret_cast<float*>(weights + 9 * C * STEP);
    const u32 tile_at = shared_address(shared), weight_at = shared_address(weights);
    const int lane = THREAD % 32, warp = THREAD / 32, mine = lane % 4 * MINE;
    const int begin = PROGRAM * per, tiles = (pixels + M - 1) / M;
    const int end = begin + per < tiles ? begin + per : tiles;

    fetch(tile_at, x, begin, pixels);
    copies_end();
#if ENTER
    const Entry enter(norm, gamma, beta);
#endif
    no_columns(shared);
    no_columns(shared + TILE_BYTES);
    hold_weight(weights, weight);
    barrier();
    u32 held[HELD ? 9 : 1][4];
    if constexpr (HELD) {
#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            load_turned(held[tap], weight_at + place(lane % 16, lane / 16) + place(16 * tap, 0));
        }
    }
#if BACK
    Passing passing(norm, gamma, beta);
#else
    // The mean is not known yet, so deviations and their squares are measured from the first pixel o of the run. In
    // M2 = sum (x - o)^2 - n (mean - o)^2 the distance d of o from the mean adds to both terms, so the error is a few
    // times eps (1 + d^2 / var), however large the mean is. At a corner, where most taps read zeros, d^2 / var is about
    // 25; at worst, one outlier among n pixels, it is n - 1: an error of 4e-4 for n = 1024, a tenth of bfloat16's.
    float first[MINE], second[MINE], origin[MINE];
    float* origins = sums + 2 * WARPS * C;
#pragma unroll
    for (int c = 0; c < MINE; c++) first[c] = second[c] = origin[c] = 0.0f;
#endif
    u32 corners[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) corners[m] = tile_at + place(corner((warp * MT + m) * 16 + lane % 16), lane / 16);

    for (int tile = begin; tile < end; tile++) {
        const int other = (tile - begin) % 2 * TILE_BYTES;
        if (tile + 1 < end) {
            fetch(tile_at + TILE_BYTES - other, x, tile + 1, pixels);
            copies_end();
            await_copies<1>();
        } else {
            await_copies<0>();
        }
#if ENTER
        enter(shared + other, tile, pixels);
#endif
        barrier();
        const int pixel = tile * M + warp * MT * 16 + lane / 4;
#if BACK
        constexpr int AHEAD = C == 16 ? 2 * MT : 1;  // loaded before the products, if registers are left
        Some maps[AHEAD], beside[AHEAD], after[AHEAD];
        auto ask = [&](int i, int at) {
            maps[i] = read_some(below, at, mine);
            if constexpr (BACK == 2) {
                beside[i] = read_some(skip, at, mine);
                after[i] = read_some(seen, at, mine);
            }
        };
        if constexpr (AHEAD > 1) {
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                if (FULL || pixel + 8 * i < pixels) ask(i, pixel + 8 * i);
            }
        }
#endif
        float sum[MT][NT][4];
        u32 here[MT];
#pragma unroll
        for (int m = 0; m < MT; m++) here[m] = corners[m] + other;
        convolve(sum, here, weight_at, held);
        barrier();  // the tile may be overwritten

#if !BACK
        if (tile == begin) {
            if (warp == 0 && lane < 4) {
#pragma unroll
                for (int c = 0; c < MINE; c++) origins[mine + c] = sum[0][c / 2][c % 2];
            }
            barrier();
#pragma unroll
            for (int c = 0; c < MINE; c++) origin[c] = origins[mine + c];
        }
#endif
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int at = pixel + 8 * i;
            if (FULL || at < pixels) {
                float value[MINE];
                Some left;
#pragma unroll
                for (int c = 0; c < MINE; c++) value[c] = sum[i / 2][c / 2][i % 2 * 2 + c % 2];
#if BACK
                if constexpr (AHEAD == 1) ask(0, at);
                left = passing(value, maps[i % AHEAD], beside[i % AHEAD], after[i % AHEAD]);
#else
#pragma unroll
                for (int c = 0; c < MINE; c++) {
                    if (c % 2 == 0) left.two[c / 2] = rounded(value[c], value[c + 1]);
                    const float off = value[c] - origin[c];
                    first[c] += off;
                    second[c] += off * off;
                }
#endif
                write_some(out, at, mine, left);
            }
        }
    }

#if BACK
    gather_sums(passing.first, passing.second, sums);
#else
    gather_sums(first, second, sums);
#endif
    for (int c = THREAD; c < C; c += THREADS) {
        float one = 0.0f, two = 0.0f;
        for (int w = 0; w < WARPS; w++) one += sums[2 * w * C + c], two += sums[(2 * w + 1) * C + c];
#if !BACK  // as mean and M2
        const int left = pixels - begin * M, run = (end - begin) * M;
        const float off = one / (float)(left < run ? left : run);
        two = two - one * off > 0 ? two - one * off : 0.0f;
        one = origins[c] + off;
#endif
        write<float>(partial + 2 * PROGRAM * C + c, one);
        write<float>(partial + (2 * PROGRAM + 1) * C + c, two);
    }
}
