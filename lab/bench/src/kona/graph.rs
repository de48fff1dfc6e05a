//! R-MAT graphs: skewed as real ones are, and the same for the same seed.
//!
//! Chakrabarti, Zhan and Faloutsos, *R-MAT: A Recursive Model for Graph Mining*
//! (SDM '04), with the Graph500's parameters (0.57, 0.19, 0.19, 0.05) and its 16
//! edges a vertex. Kona's runs had Twitter's and other graphs, which are not ours
//! to hand out.

use farmem_protocol::random::Random;

/// Edges for each vertex, before each is put down in both directions.
const EDGES: usize = 16;

/// Neighbours of each vertex, in both directions, in compressed rows.
pub struct Graph {
    /// Where each vertex's neighbours begin; one more at the end.
    pub starts: Vec<u32>,
    /// All of them.
    pub neighbours: Vec<u32>,
}

impl Graph {
    /// Of 2^scale vertices.
    pub fn rmat(scale: u32, seed: u64) -> Graph {
        let vertices = 1_usize << scale;
        let mut draw = Random::new(seed);
        let edges: Vec<(u32, u32)> = (0..vertices * EDGES).map(|_| edge(scale, &mut draw)).collect();
        let mut starts = vec![0_u32; vertices + 1];
        for &(a, b) in &edges {
            starts[a as usize + 1] += 1;
            starts[b as usize + 1] += 1;
        }
        for vertex in 0..vertices {
            starts[vertex + 1] += starts[vertex];
        }
        let mut next = starts.clone();
        let mut neighbours = vec![0; edges.len() * 2];
        for (a, b) in edges {
            for (from, to) in [(a, b), (b, a)] {
                neighbours[next[from as usize] as usize] = to;
                next[from as usize] += 1;
            }
        }
        Graph { starts, neighbours }
    }

    /// How many vertices.
    pub fn vertices(&self) -> usize {
        self.starts.len() - 1
    }

    /// A vertex's neighbours.
    #[inline]
    pub fn of(&self, vertex: usize) -> &[u32] {
        &self.neighbours[self.starts[vertex] as usize..self.starts[vertex + 1] as usize]
    }
}

/// Descends into a quadrant of the matrix for each bit. Names are scrambled, so that being busy and being a
/// neighbour in memory are not the same.
fn edge(scale: u32, draw: &mut Random) -> (u32, u32) {
    let (mut a, mut b) = (0_u32, 0_u32);
    for _ in 0..scale {
        let (down, right) = match draw.index(100) {
            0..57 => (0, 0),
            57..76 => (0, 1),
            76..95 => (1, 0),
            _ => (1, 1),
        };
        (a, b) = (a << 1 | down, b << 1 | right);
    }
    // Odd, so that it permutes the numbers below 2^scale.
    let scrambled = |name: u32| name.wrapping_mul(0x9E37_79B1) & ((1 << scale) - 1);
    (scrambled(a), scrambled(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_skewed_and_the_same_again() {
        let graph = Graph::rmat(12, 1);
        assert_eq!((graph.vertices(), graph.neighbours.len()), (4096, 4096 * 32));
        assert_eq!(graph.neighbours, Graph::rmat(12, 1).neighbours);
        let mut degrees: Vec<usize> = (0..4096).map(|vertex| graph.of(vertex).len()).collect();
        degrees.sort_unstable();
        let top: usize = degrees[4096 - 41..].iter().sum();
        assert!(top > 4096 * 32 / 5, "a hundredth of the vertices has over a fifth of the edges: {top}");
        for vertex in [0, 7, 4095] {
            assert!(graph.of(vertex).iter().all(|&other| graph.of(other as usize).contains(&(vertex as u32))));
        }
    }
}
