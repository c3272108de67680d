"""Every name users may import, listed: adding or losing one is a decision, not an accident."""

import importlib
import inspect

import pytest

import rankscope

NAMES = {
    "rankscope": """
        Bounds Loaded Monitor Network Path Prediction Result Spec Trace __version__ activations
        advise ask attach bounds compare count_paths deep deep_trace design_values diagnose
        enumerate_paths errors experiments families figures find_equilibria head_shares load masks
        metric_catalogue metrics monitor network path_lengths path_matrix path_output paths predict
        prediction report reproduce residual results run sample_paths sweep tables text
        theory top_paths trace tracing training truncate verify
    """,
    "rankscope.core.deep": """
        ScaledTensor SplitState add_states apply_activation apply_linear apply_mlp apply_norm
        attend deep_states deep_trace describe_doubts
    """,
    "rankscope.errors": """
        BlocksNotFoundError InputError KindError MissingPackageError ModelError RankscopeError
        ShapeError SourceError SpecError UnsupportedModelError VerificationError
    """,
    "rankscope.experiments": """
        CATALOGUE ENTRIES Entry Kind Scale advise compare
        diagnose entries entry four_variants path_study run
    """,
    "rankscope.models.families": """
        BUILTIN BlockInput FAMILIES Family Loaded Verification cached_folder check family_of load
        verify
    """,
    "rankscope.show.figures": """
        FIGURES Figure FigureKind axis_map by_axis by_depth by_layer by_length by_model
        by_setting by_step description draw head_map heading layer_map length_distributions
        metrics_of phase_map save step_map steps token_map trajectories
    """,
    "rankscope.core.masks": """
        BigBird BlockLocal Causal Dilated EdgeList Edges Explicit Fixed Full GlobalColumns
        Intersection LengthMask Mask OffsetMask Prefix Random Spans Star Strided Union Window
        as_mask causal_window from_edges intersection union window
    """,
    "rankscope.core.metrics": """
        AttentionScores Bracket Certified Deviations EstimatedSpectra RankEstimate Spectra
        SpectralEvidence SpectrumProbe StateStatistics alignment attention_entropy deviations
        dispersion dobrushin dobrushin_bounds dobrushin_lower dobrushin_upper effective_rank
        estimated_spectra high_pass_ratio largest_weight matrix_norm mean_cosine
        numerical_rank participation_ratio renyi_entropy residual score_gamma
        second_singular_bounds second_singular_lower second_singular_upper
        second_singular_value singular_values sink_mass spectra spectral_ratio stable_rank
        state_statistics token_norm uniformity
    """,
    "rankscope.core.network": """
        ALiBi Activation Attention Block Branch Described GaussianKernel Init LinearKernel Linformer
        MLP Network NormRule RelativeBias Rotary ScoreKind Scores Sink Sparsemax Spec Sphere Step
        Visibility
    """,
    "rankscope.core.paths": """
        HeadShares Path PathCounts PathLengths TopPaths chained_matrices count_paths
        enumerate_paths head_shares path_lengths path_matrix path_output path_outputs
        sample_paths top_paths truncate truncations
    """,
    "rankscope.core.prediction": """
        Band PredictedOutcome Prediction measured_gradients predict
    """,
    "rankscope.show.report": """
        Chart Report Section Table notebook page show to_json write write_html
    """,
    "rankscope.run": """
        ClaimRun ENGINES Engine Grid Inline Processes Progress RayEngine Reproduction
        Reproductions Run RunOutcome RunRecord Status Sweep SweepEstimate SweepPlan claim_runs
        estimate execute plan read_grid reproduce status sweep table
    """,
    "rankscope.models.text": """
        InputCheck Tokenizer check_texts embed passages
    """,
    "rankscope.core.theory": """
        Bounds Designs Equilibria Equilibrium Ergodicity EveryRank GraphFacts LayerBounds
        Stability StableSearch a_priori_log_decay a_priori_log_loss a_priori_rate bounds
        class_weights design_values equilibrium_at ergodicity every_rank find_equilibria
        graph_facts limit_weights norm_preimage perron_weights
        residual_preserving_network second_eigenvalue second_modulus smallest_allowed_weight
        stability_of stable_search step_jacobian thresholds
    """,
    "rankscope.core.tracing": """
        DEFAULT_METRICS MEASURES Provenance Session Trace activations attach captured_input
        captured_states choose_measures evaluating find_blocks trace trace_in_batches
        with_replaced_state
    """,
    "rankscope.models.training": """
        Approach Classify Examples Hull LanguageConfig LanguageModel Memorisation Recipe
        SequenceModel Sorting Task Trained read_sentences small_language_model train
    """,
    "rankscope.tables": """
        COLUMNS frame from_rows joined pooled read stack summary write write_csv
    """,
    "rankscope.metric_catalogue": """
        METRICS Metric knowing metric
    """,
    "rankscope.results": """
        read write
    """,
}
OTHERS = {
    "rankscope.ask": """
        Model Setup Subject built_in by_name model_subject module_subject network_subject
        random_subject
    """,
    "rankscope.monitor": """
        Alarm History LiveWatch MONITORED Monitor OVERHEAD RULES RunReader read_run run_result
        write_report
    """,
}
"""Their answers are not tables, and not all of their functions are among the fuzzed calls."""
PUBLIC = NAMES | OTHERS


@pytest.mark.parametrize("package", PUBLIC)
def test_the_package_exports_these_names_and_no_others(package):
    module = importlib.import_module(package)
    exported = getattr(module, "__all__", None)
    if exported is None:  # the errors are all there is in their file
        exported = [name for name, value in vars(module).items() if isinstance(value, type)]
    assert sorted(exported) == PUBLIC[package].split()
    assert [name for name in exported if getattr(module, name) is None] == []


def test_every_package_at_the_top_is_listed():
    modules = {name: getattr(rankscope, name) for name in rankscope.__all__}
    packages = {value.__name__ for value in modules.values() if inspect.ismodule(value)}
    assert packages | {"rankscope"} == set(PUBLIC)
