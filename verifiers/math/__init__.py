r"""Grading of mathematical answers: reads LaTeX, compares exactly or to many digits, within fixed budgets.

The way of an answer, from response to verdict. A stage imports only stages above it; `make lint` checks this.

    stage     module         what it does                         with
    extract   verifiers.extract  (outside this package: response -> text of the box)
    tokenize  tokens         text -> tokens                       notation
    parse     parser         tokens -> tree of `nodes`            cursor, literals, calculus, words
    read      answer         text -> tree, unit and words         units, qualifiers
    expand    shorthand      a \pm b -> both values               trees
    evaluate  arithmetic     tree -> fraction or digits           functions, quadrature
              algebra        tree -> sympy and back, asked last   expressions
              substitution   operation -> its value               scalars
    compare   comparison     two trees -> equal or not, by shape  scalars, marks, vectors, texts, matching
                             names of quantities, + C             names, labels, added_constant
                             equations, inequalities, intervals   relations, regions, families, solutions
    refuse    operations     finds an operation left undone
    verdict   verifier       runs the stages, keeps verdicts      clock

`trees` asks and changes any tree; evaluation and comparison see trees only, never text."""
